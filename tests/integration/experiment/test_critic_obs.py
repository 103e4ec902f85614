"""Entries that only the critic reads: they make values known, and never reach an action."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tiny_envs import Lottery, Privileged

import rl_training
from rl_training.algorithms import ALGORITHMS
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.spaces.stored import split_critic, with_critic
from rl_training.experiment.environment_check import check_env
from rl_training.experiment.logs.sinks import WALL_CLOCK
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.steps import StepContext
from support.callbacks import StopAtUpdate

READING = ("ppo", "a2c", "recurrent_ppo", "mappo")
OTHERS = ("dqn", "sac", "td3", "bc", "iql", "awac", "td3_bc", "cql", "rebrac")
ENTRIES = {"env_id": "tiny_envs:Privileged-v0", "critic_obs": ("phase", "shift")}
CLOCK = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


class Coin(gymnasium.Env[Any, Any]):
    """One step that pays 1 or -1: what falls is an entry `coin`, which says nothing about what to do."""

    def __init__(self, shows: bool = True) -> None:
        self.action_space = spaces.Discrete(2)
        seen = {"light": spaces.Box(-1.0, 1.0, (1,), np.float32)}
        coin = {"coin": spaces.Box(-1.0, 1.0, (1,), np.float32)} if shows else {}
        self.observation_space, self.shows = spaces.Dict(seen | coin), shows

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.coin = float(self.np_random.choice([-1.0, 1.0]))
        return self._obs(), {}

    def _obs(self) -> dict[str, Any]:
        light = {"light": np.ones(1, np.float32)}
        return light | ({"coin": np.array([self.coin], np.float32)} if self.shows else {})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._obs(), self.coin, True, False, {}


def hidden_coin() -> Coin:
    return Coin(shows=False)


def batch(rows: int = 8) -> dict[str, Any]:
    """Return stored observations as a policy gets them while it collects."""
    rng = np.random.default_rng(1)
    phase = rng.integers(0, 9, rows)
    shift = rng.normal(size=(rows, 3)).astype(np.float32)
    return with_critic({"clock": CLOCK[:rows]}, {"phase": phase, "shift": shift})


def saved(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")}


def told(run_dir: Path, rows: Any) -> list[dict[str, Any]]:
    found = rows(run_dir / "metrics.jsonl")
    return [{name: value for name, value in row.items() if name not in WALL_CLOCK} for row in found]


@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo"])
def test_only_a_critic_that_reads_the_coin_knows_what_it_is_worth(algo, tiny, rows):
    losses = {}
    for factory, names in ((Coin, ("coin",)), (hidden_coin, ())):
        config = tiny(
            algo, env_id="Coin", critic_obs=names, total_timesteps=2_048, num_steps=64, learning_rate=1e-2
        )
        run = train(config, factory=factory)
        losses[names] = rows(run.run_dir / "metrics.jsonl")[-1]["train/value_loss"]
    assert losses[("coin",)] < 0.02
    assert losses[()] > 0.7  # the variance of the coin is 1


@pytest.mark.parametrize("algo", READING)
def test_acting_ignores_what_only_the_critic_reads(algo, tiny):
    model = ALGORITHMS[algo](tiny(algo, **ENTRIES, normalize_obs=True)).learn()
    policy: Any = model.policy
    seen, told_before = batch(), policy.outputs(batch())
    other = with_critic(
        split_critic(seen)[0], {"phase": np.full(8, 3), "shift": np.full((8, 3), 9, np.float32)}
    )
    memory = policy.initial_state(8)
    for sure in (True, False):
        one, two, three = (
            policy.act(given, memory, deterministic=sure, rng=np.random.default_rng(2))[0]
            for given in (seen, other, {"clock": CLOCK})
        )
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three)
    told_other = policy.outputs(other)
    np.testing.assert_array_equal(told_before[0], told_other[0])
    assert (told_before[1] != told_other[1]).all(), "the critic reads them"


@pytest.mark.parametrize("algo", READING)
def test_no_gradient_of_actions_reaches_what_only_the_critic_reads(algo, tiny):
    policy: Any = ALGORITHMS[algo](tiny(algo, **ENTRIES)).policy
    obs = {key: torch.from_numpy(part) for key, part in batch().items()}
    shift, clock = obs["/critic/shift"].requires_grad_(), obs["clock"].requires_grad_()
    inputs = type(policy).prepare.__wrapped__(policy, obs)
    memory = {}
    if algo == "recurrent_ppo":
        start = tuple(torch.from_numpy(part) for part in policy.initial_state(8))
        memory = {"memory": start, "starts": torch.zeros(8, dtype=torch.bool)}
    params, values = policy.network(inputs, **memory)[:2]
    for outputs, reads in ((params, False), (values, True)):
        by_clock, by_shift = torch.autograd.grad(
            outputs.sum(), [clock, shift], retain_graph=True, allow_unused=True
        )
        assert by_clock is not None
        assert (by_shift is not None) == reads


@pytest.mark.parametrize("algo", READING)
def test_an_interrupted_run_leaves_what_an_uninterrupted_one_does(algo, tiny, rows):
    settings = ENTRIES | {"normalize_obs": True, "normalize_reward": True, "total_timesteps": 128}
    whole = train(tiny(algo, **settings)).checkpoint_path
    by_workers = train(tiny(algo, **settings, env_backend="async")).checkpoint_path
    assert saved(whole) == saved(by_workers)
    for steps in (32, 80):
        paused = train(tiny(algo, **settings), callbacks=[StopAtUpdate(steps)])
        assert paused.paused
        done = resume(paused.run_dir).checkpoint_path
        assert saved(done) == saved(whole), steps
        assert told(done.parents[1], rows) == told(whole.parents[1], rows)


@pytest.mark.parametrize("algo", READING)
def test_learn_predict_evaluate_save_load_and_learn_on(algo, tiny, tmp_path):
    model = ALGORITHMS[algo](tiny(algo, **ENTRIES, normalize_obs=True)).learn()
    actions, state = model.predict({"clock": CLOCK})
    again, _ = model.predict({"clock": CLOCK, "phase": np.zeros(8, np.int64), "shift": CLOCK})
    np.testing.assert_array_equal(actions, again)
    assert (state is None) == (algo != "recurrent_ppo")
    summary = model.evaluate(3)
    model.save(tmp_path / "agent")
    loaded = rl_training.load(tmp_path / "agent")
    assert loaded.agent.spec == model.agent.spec
    np.testing.assert_array_equal(loaded.predict({"clock": CLOCK})[0], actions)
    assert loaded.evaluate(3) == summary
    assert loaded.learn(64).agent.timesteps == 128


class WithoutEntries(Lottery):
    """The environment of `Privileged` as it is outside the simulator."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({"clock": self.observation_space})

    def _obs(self) -> Any:
        return {"clock": super()._obs()}


def test_an_agent_is_evaluated_where_the_entries_are_missing(tiny, tmp_path):
    model = rl_training.PPO(tiny(**ENTRIES)).learn()
    assert model.evaluate(4, env=WithoutEntries) == model.evaluate(4, env=Privileged)
    model.save(tmp_path / "agent")
    loaded = rl_training.PPO.load(tmp_path / "agent", env=WithoutEntries)
    assert loaded.evaluate(4) == model.evaluate(4)
    with pytest.raises(UserError, match="critic_obs names 'phase', but observations have the entries clock"):
        loaded.learn(64)


def test_another_process_predicts_without_the_environment(tiny, tmp_path):
    model = rl_training.RecurrentPPO(tiny("recurrent_ppo", **ENTRIES, normalize_obs=True)).learn()
    model.save(tmp_path / "agent")
    np.save(tmp_path / "clock.npy", CLOCK)
    code = (
        "import numpy as np, rl_training, sys; model = rl_training.load('agent');"
        "print(model.predict({'clock': np.load('clock.npy')})[0].tolist()); assert 'tiny_envs' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(model.predict({"clock": CLOCK})[0].tolist())


@pytest.mark.parametrize("algo", READING)
def test_every_update_path_learns_the_same(algo, tiny):
    models = {}
    for path in ("auto", "autograd"):
        model = ALGORITHMS[algo](tiny(algo, **ENTRIES, normalize_obs=True, update_path=path)).learn()
        models[path] = model.agent.state["model"]
        explicit = {"auto": "explicit", "autograd": "autograd"}[path]
        if (
            algo == "recurrent_ppo" and path == "auto"
        ):  # cores that read different inputs are left to autograd
            explicit = "explicit after autograd"
        assert path_of(model) == explicit
    for name, tensor in models["auto"].items():
        if isinstance(tensor, torch.Tensor):
            torch.testing.assert_close(tensor, models["autograd"][name], rtol=1e-4, atol=1e-5)


def path_of(model: Any) -> str:
    from rl_training.experiment.building import build_parts

    return build_parts(model.config, model.agent.spec).learner.update_path


def test_shards_learn_what_the_whole_minibatch_teaches(tiny):
    states = [
        rl_training.PPO(tiny(**ENTRIES, learner_shards=shards)).learn().agent.state["model"]
        for shards in (1, 2)
    ]
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], rtol=1e-4, atol=1e-5)


class Camera(gymnasium.Env[Any, Any]):
    """An image, a vector and a mask; what falls is in the vector, and in the other image."""

    def __init__(self) -> None:
        self.action_space = spaces.Discrete(3)
        image = spaces.Box(0, 255, (9, 9, 1), np.uint8)
        self.observation_space = spaces.Dict(
            {
                "image": image,
                "above": spaces.Box(0, 255, (8, 8, 3), np.uint8),
                "state": spaces.Dict(
                    {"speed": spaces.Box(-1, 1, (2,), np.float32), "gear": spaces.Discrete(3)}
                ),
                "action_mask": spaces.MultiBinary(3),
            }
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.time = 0
        return self._obs(), {}

    def _obs(self) -> Any:
        return self.observation_space.sample() | {"action_mask": np.array([1, 0, 1], np.int8)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action != 1
        self.time += 1
        return self._obs(), 1.0, False, self.time >= 5, {}


@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo"])
@pytest.mark.parametrize("names", [("state",), ("above",), ("above", "state"), ("image", "above")])
@pytest.mark.parametrize(
    "settings", [{}, {"share_encoder": False, "normalize_obs": True}, {"encoder": "flat"}]
)
def test_images_vectors_and_masks(algo, names, settings, tiny, tmp_path):
    settings = settings | ({} if "encoder" in settings else {"features_dim": 6})
    if algo == "recurrent_ppo" or settings.get("share_encoder", True):
        settings = settings | {"normalize_obs": "state" not in names or settings.get("encoder") == "flat"}
    model = ALGORITHMS[algo](tiny(algo, env_id="Camera", critic_obs=names, **settings), env=Camera).learn()
    assert model.agent.spec.masked
    obs = {key: part for key, part in Camera().reset(seed=1)[0].items() if key not in names}
    whole = Camera().reset(seed=1)[0]
    assert model.predict(obs)[0] == model.predict(whole)[0]
    assert model.evaluate(2)["num_episodes"] == 2
    model.save(tmp_path / "agent")
    assert rl_training.load(tmp_path / "agent").predict(obs)[0] == model.predict(obs)[0]


def test_an_encoder_of_the_user_reads_the_observation_and_never_the_entries(tiny):
    settings = {"encoder": "tiny_encoders:Plain", "features_dim": 5, "share_encoder": False}
    model = rl_training.PPO(tiny(**ENTRIES, **settings)).learn()
    network: Any = model.policy.network
    assert network.encoder.layers[0].in_features == network.critic_encoder.layers[0].in_features == 3
    assert network.network.critic_body[0].in_features == 5 + 9 + 3
    assert network.network.actor_body[0].in_features == 5


class Watch(Callback):
    def __init__(self) -> None:
        self.steps: list[StepContext] = []

    def on_step(self, step: StepContext) -> None:
        self.steps.append(step)


def test_callbacks_see_what_the_policy_sees(tiny):
    watch = Watch()
    train(tiny(**ENTRIES), callbacks=[watch])
    assert {frozenset(step.observations) for step in watch.steps} == {frozenset(["clock"])}
    assert {frozenset(step.next_observations) for step in watch.steps} == {frozenset(["clock"])}


def test_a_recording_has_what_the_environment_shows(tiny, tmp_path):
    model = rl_training.PPO(tiny(**ENTRIES)).learn()
    folder = rl_training.record(model, tmp_path / "data", num_episodes=2)
    from rl_training.datasets.opening import open_dataset

    assert set(open_dataset(str(folder)).observation_space) == {"clock", "phase", "shift"}


@pytest.mark.parametrize("algo", OTHERS)
def test_algorithms_without_such_a_critic_say_so(algo, tiny):
    with pytest.raises(ConfigError, match=f"critic_obs is given, but {algo} has no critic .* use ppo, a2c"):
        tiny(algo, critic_obs=("phase",))


@pytest.mark.parametrize(
    ("algo", "settings", "words"),
    [
        ("ppo", {"shared_network": True}, "shared_network is true, but the critic reads more than the actor"),
        (
            "recurrent_ppo",
            {"share_core": True},
            "share_core is true, but the critic reads more than the actor",
        ),
        (
            "mappo",
            {"critic_input": "state"},
            "critic_input is state, but critic_obs names what the critic reads",
        ),
        ("mappo", {"shared_network": True}, "shared_network is true, but the critic reads more"),
    ],
)
def test_settings_that_contradict_each_other(algo, settings, words, tiny):
    with pytest.raises(ConfigError, match=words):
        tiny(algo, **ENTRIES, **settings)


@pytest.mark.parametrize(
    ("env_id", "names", "words"),
    [
        (
            "tiny_envs:Privileged-v0",
            ("phas",),
            "names 'phas', but observations .* clock, phase, shift; did you mean",
        ),
        (
            "tiny_envs:Privileged-v0",
            ("phase", "shift", "clock"),
            "which leaves nothing for the actor; leave one out",
        ),
        (
            "CartPole-v1",
            ("phase",),
            r"names entries of a Dict observation, but observations are Box\(shape=\(4,\)",
        ),
    ],
)
def test_entries_that_are_not_there(env_id, names, words, tiny, tmp_path):
    with pytest.raises(UserError, match=words):
        train(tiny(env_id=env_id, critic_obs=names))
    assert not (tmp_path / "runs").exists()
    (problem,) = check_env(env_id, critic_obs=names).problems
    assert re.search(words, problem)


def test_check_env_lists_the_algorithms_that_read_them() -> None:
    assert check_env(Privileged, critic_obs=("phase",)).algorithms == ["ppo", "a2c", "recurrent_ppo", "mappo"]
    assert check_env(Privileged).algorithms == ["ppo", "a2c", "dqn", "recurrent_ppo"]


class OtherEntries(Privileged):
    """What only the critic reads has other shapes."""

    def __init__(self) -> None:
        super().__init__()
        parts = self.observation_space.spaces
        shift = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = spaces.Dict(parts | {"shift": shift})

    def _obs(self) -> Any:
        obs = super()._obs()
        return obs | {"shift": obs["shift"][:2]}


def test_training_goes_on_only_where_the_critic_reads_the_same(tiny):
    run = train(tiny(**ENTRIES)).run_dir
    with pytest.raises(UserError, match="was trained with observation_space"):
        rl_training.PPO.start_from(run, critic_obs=()).learn()
    with pytest.raises(UserError, match="was trained with observation_space"):
        rl_training.PPO.start_from(run, critic_obs=("shift",)).learn()
    with pytest.raises(
        UserError, match=r"was trained with critic_space .* now has .*shift: Box\(shape=\(2,\)"
    ):
        rl_training.PPO.start_from(run, env=OtherEntries).learn()
    with pytest.raises(UserError, match="was trained with critic_space"):
        rl_training.PPO.load(run, env=OtherEntries).learn(64)
    assert rl_training.PPO.start_from(run).learn().agent.timesteps == 64


def test_mappo_needs_something_that_only_its_critic_reads(tiny):
    with pytest.raises(UserError, match=r"mappo needs a game with several agents, or critic_obs.*; use ppo"):
        train(tiny("mappo", env_id="CartPole-v1", critic_obs=()))
