"""Numbers of `info` in the metrics and in evaluations: every backend, every algorithm, exact after an interruption."""

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rl_training import PPO
from rl_training.core.errors import ConfigError, EnvironmentFault
from rl_training.core.info_keywords import keyword_parts
from rl_training.experiment.resume import resume
from rl_training.experiment.start import evaluate_checkpoint, train
from rl_training.runtime import metrics
from support.compared_runs import assert_same_run, crashed
from support.configs import CONTINUOUS, ONLINE

KEYWORDS = ["fuel", "distance:last", {"paid": "sum"}, "height:max", "depth:min"]


class Rocket(gymnasium.Env[Any, Any]):
    """Five steps. `fuel` is 1 to 5 times the drawn scale, an int where it is whole; `distance` only at the end."""

    observation_space = spaces.Box(-9, 9, (2,), np.float32)

    def __init__(self, continuous: bool = False, said: Any = None, masked: bool = False) -> None:
        self.said, self.masked = said, masked
        self.action_space: Any = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(2)

    def _obs(self) -> Any:
        return np.array([self.count, self.scale], np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, self.scale = 0, float(self.np_random.integers(1, 5)) / 2
        return self._obs(), {"fuel": 1000.0, "distance": 1000.0} | self._mask()

    def _mask(self) -> dict[str, Any]:
        return {"action_mask": np.array([1, 1], np.int8)} if self.masked else {}

    def step(self, action: Any) -> Any:
        self.count += 1
        fuel = self.count * self.scale
        info: dict[str, Any] = {"fuel": int(fuel) if fuel.is_integer() else fuel, "paid": np.float32(0.5)}
        info |= {"height": np.array(self.count * self.scale), "depth": self.count > 2} | self._mask()
        if self.count == 5:
            info["distance"] = np.int64(round(10 * self.scale))
        if self.said is not None:
            info["fuel"] = self.said
        return self._obs(), self.scale, self.count == 5, False, info


class Rockets(VectorEnv[Any, Any, Any]):
    """The same, as a vector of its own with either autoreset mode."""

    def __init__(self, num_envs: int, mode: str) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode(mode)}
        self.num_envs, self.rng = num_envs, np.random.default_rng(0)
        self.single_observation_space, self.single_action_space = Rocket.observation_space, spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.envs = [Rocket() for _ in range(num_envs)]
        self.over = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.over[:] = False
        return np.stack([env.reset(seed=i)[0] for i, env in enumerate(self.envs)]), {}

    def step(self, actions: Any) -> Any:
        same = self.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
        n = self.num_envs
        obs, rewards, ended = np.zeros((n, 2), np.float32), np.zeros(n), np.zeros(n, np.bool_)
        info: dict[str, Any] = {"fuel": np.full(n, 1000.0)}
        final: dict[str, Any] = {"fuel": np.zeros(n), "_fuel": np.zeros(n, np.bool_)}
        finals = np.full(n, None, object)
        for i, env in enumerate(self.envs):
            if self.over[i]:  # the step only resets
                obs[i], _ = env.reset()
                continue
            obs[i], rewards[i], ended[i], _, said = env.step(actions[i])
            if ended[i] and same:
                finals[i], final["fuel"][i], final["_fuel"][i] = obs[i].copy(), said["fuel"], True
                obs[i], _ = env.reset()
            else:
                info["fuel"][i] = said["fuel"]
        if same and ended.any():
            info |= {"final_obs": finals, "final_info": final}
        self.over = np.zeros(n, np.bool_) if same else ended
        return obs, rewards, ended, np.zeros(n, np.bool_), info


gymnasium.register("Rocket-v0", entry_point=Rocket)
gymnasium.register("Rockets-v0", vector_entry_point=Rockets)


def expected(mean_reward: float) -> dict[str, float]:
    """Every number of an episode is a multiple of its scale, which is a fifth of its return."""
    scale = mean_reward / 5
    return {"fuel": 3 * scale, "distance": 10 * scale, "paid": 2.5, "height": 5 * scale, "depth": 0.0}


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("masked", [False, True])
def test_the_numbers_of_finished_episodes(tiny, rows, backend, masked):
    config = tiny(
        "ppo",
        env_id="Rocket-v0",
        env_kwargs={"masked": masked},
        env_backend=backend,
        info_keywords=KEYWORDS,
        num_envs=3,
        eval_every_timesteps=48,
        num_eval_episodes=5,
    )
    result = train(config)
    row = rows(result.run_dir / "metrics.jsonl")[-1]
    logged, evaluated = expected(row["rollout/ep_rew_mean"]), expected(row["eval/mean_reward"])
    assert logged != evaluated
    for name in logged:
        assert row[f"info/{name}"] == pytest.approx(logged[name])
        assert row[f"eval/info/{name}"] == pytest.approx(evaluated[name])
        assert result.metrics[f"eval/info/{name}"] == row[f"eval/info/{name}"]
    assert rows(result.run_dir / "evaluations.jsonl")[-1]["info/fuel"] == row["eval/info/fuel"]
    assert evaluate_checkpoint(result.run_dir, 5)["info/distance"] == row["eval/info/distance"]


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_native_vectors(tiny, rows, mode):
    config = tiny(
        "ppo",
        env_id="Rockets-v0",
        env_kwargs={"mode": mode},
        env_backend="native",
        info_keywords=["fuel:sum"],
    )
    row = rows(train(config).run_dir / "metrics.jsonl")[-1]
    assert row["info/fuel"] == pytest.approx(3 * row["rollout/ep_rew_mean"])
    assert row["eval/info/fuel"] == pytest.approx(3 * row["eval/mean_reward"])


@pytest.mark.parametrize("algo", ONLINE)
def test_every_algorithm_that_collects_resumes_to_the_same_rows(tiny, rows, algo):
    config = tiny(
        algo,
        env_id="Rocket-v0",
        env_kwargs={"continuous": algo in CONTINUOUS},
        info_keywords=KEYWORDS,
        num_envs=3,
        checkpoint_every_timesteps=18,
        log_every_timesteps=6,
        total_timesteps=96,
    )
    whole, killed = train(config).run_dir, crashed(config, 54)
    resume(killed)
    assert_same_run(killed, whole, rows)
    assert rows(killed / "metrics.jsonl")[-1]["info/paid"] == 2.5


def test_a_number_that_no_step_reports_is_remarked_once(tiny):
    config = tiny("ppo", env_id="Rocket-v0", info_keywords=["fule", "fuel"])
    with pytest.warns(UserWarning, match="'fule'") as caught:
        result = train(config)
    (text,) = [str(one.message) for one in caught]
    assert "did you mean 'fuel'" in text
    assert text.startswith("info_keywords: no step has reported 'fule' so far; info contains: ")
    assert "'depth', 'distance', 'fuel', 'height', 'paid'" in text
    assert "info/fuel" in evaluate_checkpoint(result.run_dir, 1)


def test_a_resumed_run_does_not_repeat_the_remark(tiny, monkeypatch):
    monkeypatch.setattr(metrics, "MANY_EPISODES", 1)
    config = tiny("ppo", env_id="Rocket-v0", info_keywords=["fule"], checkpoint_every_timesteps=32)
    with pytest.warns(UserWarning, match="'fule'"):
        killed = crashed(config, 64)
    resume(killed)  # warnings are errors


def test_a_missing_number_is_remarked_after_many_episodes():
    """Before that, an episode that reports it may only not have come yet."""
    missing = metrics.MissingKeywords(["fuel"])
    missing.add(frozenset({"height"}))
    assert not missing.due(metrics.MANY_EPISODES - 1, last=False)
    assert missing.due(1, last=True)
    assert missing.due(metrics.MANY_EPISODES, last=False)
    with pytest.warns(UserWarning, match="no step has reported 'fuel' so far; info contains: 'height'"):
        missing.check([])
    assert not missing.due(metrics.MANY_EPISODES, last=True)


def test_a_resumed_run_that_has_not_collected_says_nothing():
    missing = metrics.MissingKeywords(["fuel"])
    missing.check([])  # warnings are errors
    assert missing.checked


def test_an_environment_that_reports_nothing(tiny):
    with pytest.warns(UserWarning, match="info contains: nothing"):
        train(tiny("dqn", info_keywords=["fuel"]))


@pytest.mark.parametrize(
    ("said", "shown"),
    [("full", "'full'"), ([1.0], "[1.0]"), (np.ones(1), "array"), (math.inf, "inf"), (1j, "1j"), ({}, "{}")],
)
def test_what_is_no_number_is_refused(said, shown):
    refused("sync", said, shown)


def test_another_process_refuses_it_too():
    refused("async", "full", "'full'")


def refused(backend: Any, said: Any, shown: str) -> None:
    model = PPO(
        lambda: Rocket(said=said),
        info_keywords=["fuel"],
        num_envs=2,
        env_backend=backend,
        use_action_masks="off",
        rebuild_envs="off",
    )
    with pytest.raises(EnvironmentFault) as error:
        model.learn(64)
    assert all(
        part in str(error.value) for part in ("info['fuel']", shown, "info_keywords", "leave 'fuel' out")
    )


def test_nan_means_that_nothing_is_reported(tiny, rows):
    model = PPO(lambda: Rocket(said=math.nan), info_keywords=["fuel", "paid"], num_envs=2, num_steps=32)
    model.learn(64)
    row = rows(model.agent.path.parents[1] / "metrics.jsonl")[-1]
    assert "info/fuel" not in row
    assert row["info/paid"] == 0.5


def test_the_forms_of_the_setting(tiny):
    def checked(value: Any) -> Any:
        return tiny("ppo", info_keywords=value).info_keywords

    assert checked("fuel") == checked(["fuel:mean"]) == checked(({"fuel": "mean"},)) == ("fuel",)
    assert checked([{"a": "last", "b": "sum"}, "c:max"]) == ("a:last", "b:sum", "c:max")
    assert checked([{"a:last": "mean", "b:x": "sum"}]) == ("a:last:mean", "b:x:sum")
    assert checked(checked([{"a:last": "mean"}])) == ("a:last:mean",)
    assert keyword_parts("a:last:mean") == ("a:last", "mean")
    for wrong, remedy in [
        (["fuel:lats"], "did you mean 'last'"),
        (["fuel", "fuel:last"], "named twice"),
        ([3], "use a list of names"),
        ([""], "use a list of names"),
        ([{"fuel": 3}], "takes one of mean, last"),
    ]:
        with pytest.raises(ConfigError, match="info_keywords is") as error:
            checked(wrong)
        assert remedy in str(error.value)
    assert tiny("ppo", info_keywords=["fuel"]).fingerprint() == tiny("ppo").fingerprint()


def test_the_flag(cli, tmp_path):
    outcome = cli(
        "train", "ppo", "--env-id", "Rocket-v0", "--total-timesteps", 64, "--num-envs", 2, "--num-steps", 32,
        "--info-keywords", "fuel", "distance:last", "--output-dir", tmp_path, "--quiet",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    (run,) = tmp_path.iterdir()
    told = cli("eval", run, "--num-episodes", 3).out
    assert "info/fuel: " in told
    assert "info/distance: " in told
    assert "info_keywords:\n- fuel\n- distance:last\n" in (run / "config.yaml").read_text(encoding="utf-8")
