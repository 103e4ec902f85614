"""Environments and arguments as strangers bring them: each gets a sentence that names it and says what to do."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rl_training.algorithms import PPO
from rl_training.core.errors import EnvironmentFault, UserError
from rl_training.experiment.loading import load_agent
from rl_training.experiment.start import train


class Plain(gymnasium.Env[Any, Any]):
    """Ten steps of nothing; subclasses change one thing each."""

    observation_space: Any = spaces.Box(-1, 1, (3,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.observe(), 1.0, self.count >= 10, False, {}

    def observe(self) -> Any:
        return self.observation_space.sample()


class Narrow(Plain):
    """Shows one number where three were promised: a worker would spread it over all of them."""

    def observe(self) -> Any:
        return np.ones(1 if self.count == 7 else 3, np.float32)


class Quits(Plain):
    """Ends the process."""

    def step(self, action: Any) -> Any:
        if self.count == 6:
            raise SystemExit(0)
        return super().step(action)


class Pays(Plain):
    """Pays a whole number that no float holds."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, 10**400 if self.count == 6 else reward, *rest


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Narrow, r"of shape \(1,\), but its space has \(3,\)"),
        (Quits, "raised SystemExit in step"),
        (Pays, "reward of more than 308 digits"),
    ],
)
def test_a_fault_has_a_name_an_address_and_the_last_checkpoint(tiny, backend, kind, words):
    with pytest.raises(
        EnvironmentFault, match=rf"environment \d \({kind.__name__}\) .*{words}.*last good checkpoint"
    ):
        train(tiny("ppo", env_id="Strange", env_backend=backend, rebuild_envs="off"), factory=kind)


def test_all_bad_entries_of_a_space_are_told_at_once(tiny):
    class Wordy(Plain):
        observation_space = spaces.Dict(
            {"a": spaces.Text(5), "b": spaces.Discrete(2), "c": spaces.Sequence(spaces.Discrete(2))}
        )

    with pytest.raises(UserError, match=r"Text \(entry 'a'\) .*Sequence \(entry 'c'\)"):
        train(tiny("ppo", env_id="Wordy"), factory=Wordy)


def test_an_observation_without_a_number_is_refused(tiny):
    class Empty(Plain):
        observation_space = spaces.Box(-1, 1, (0,), np.float32)

    with pytest.raises(UserError, match=r"Box\(shape=\(0,\).* contains no numbers"):
        train(tiny("ppo", env_id="Empty"), factory=Empty)


@pytest.mark.parametrize(("name", "space"), [("observation_space", None), ("action_space", 4)])
def test_what_is_no_space_is_refused_by_its_name(tiny, name, space):
    spaceless = type("Spaceless", (Plain,), {name: space})
    with pytest.raises(
        UserError, match=rf"environment 'Spaceless' has {name} {space}; set a space in its __init__"
    ):
        train(tiny("ppo", env_id="Spaceless"), factory=spaceless)


def test_a_reset_that_takes_no_seed_is_told_what_to_write(tiny):
    class Seedless(Plain):
        def reset(self) -> Any:
            return super().reset()

    with pytest.raises(
        EnvironmentFault, match=r"Seedless\) has a reset without seed; write 'def reset\(self, \*, seed=None"
    ):
        train(tiny("ppo", env_id="Seedless"), factory=Seedless)


@pytest.mark.parametrize("rebuild", ["off", "on"])
def test_an_environment_that_fails_when_it_is_closed_fails_no_run(tiny, rebuild):
    class Stuck(Plain):
        def close(self) -> None:
            raise OSError("the window is gone")

    with pytest.warns(UserWarning, match=r"Stuck\) raised OSError when it was closed: the window is gone"):
        result = train(
            tiny("ppo", env_id="Stuck", rebuild_envs=rebuild, use_action_masks="off"), factory=Stuck
        )
    assert result.metrics["global_step"] == 64


class TestWhatIsGivenAsEnv:
    def test_an_id_replaces_the_configs_and_is_what_is_saved(self, tiny, tmp_path):
        model = PPO(tiny("ppo", env_id="Acrobot-v1"), env="CartPole-v1").learn()
        assert model.config.env_id == "CartPole-v1"
        model.save(tmp_path / "agent")
        assert load_agent(tmp_path / "agent").config.env_id == "CartPole-v1"

    @pytest.mark.parametrize(
        "use",
        [
            lambda config, env: PPO(config, env=env),
            lambda config, env: train(config, factory=env),
            lambda config, env: PPO(config).evaluate(1, env=env),
        ],
    )
    def test_an_environment_itself_is_refused_with_what_to_write(self, tiny, use):
        with pytest.raises(
            UserError, match=r"env is an environment .*lambda: CartPoleEnv\(\.\.\.\), not lambda: env"
        ):
            use(tiny("ppo", env_id="CartPole-v1"), gymnasium.make("CartPole-v1"))

    @pytest.mark.parametrize("env", [3, {"id": "CartPole-v1"}])
    def test_what_builds_nothing_is_refused(self, tiny, env):
        with pytest.raises(UserError, match="pass an id, or a function that builds an environment"):
            PPO(tiny("ppo"), env=env)

    @pytest.mark.parametrize(
        ("built", "words"),
        [
            ({"possible_agents": ["a", "b"]}, "it must be a gymnasium.Env"),
            (
                {"step": None, "reset": None},
                "must be a gymnasium.Env; convert an environment of old gym with shimmy",
            ),
            ({}, "must be a gymnasium.Env$"),
        ],
    )
    def test_what_a_function_builds_must_be_an_environment(self, tiny, built, words):
        foreign = type("Foreign", (), built)
        with pytest.raises(UserError, match=rf"environment 'Strange' is a .*Foreign: .*{words}"):
            train(tiny("ppo", env_id="Strange"), factory=lambda: foreign())

    def test_a_vector_is_no_single_environment(self, tiny):
        with pytest.raises(UserError, match="return a single environment"):
            train(tiny("ppo", env_id="Strange"), factory=lambda: gymnasium.make_vec("CartPole-v1", 2))
