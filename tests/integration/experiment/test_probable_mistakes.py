"""What is possible but hardly meant is said before a run, and changes nothing."""

import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rl_training.envs import determinism
from rl_training.envs.determinism import settle_rebuilding
from rl_training.experiment.console import Console
from rl_training.experiment.start import train


class Heard(Console):
    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)


def notices(config: Any, factory: Any = None) -> list[str]:
    console = Heard()
    train(config, console=console, factory=factory)
    return console.notices


class Pictures(gymnasium.Env[Any, Any]):
    action_space = spaces.Discrete(2)
    observation_space = spaces.Dict(
        {"seen": spaces.Box(0, 255, (9, 9, 3), np.uint8), "felt": spaces.Box(-1, 1, (2,), np.float32)}
    )

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, bool(self.np_random.random() < 0.3), False, {}


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_a_rollout_that_is_longer_than_the_run(tiny, algo):
    config = tiny(algo, num_steps=64, total_timesteps=64)
    (said,) = notices(config)
    assert "num_steps * num_envs = 64 * 2 = 128 steps, and total_timesteps 64" in said
    assert notices(tiny(algo)) == []


def test_settings_that_have_no_effect_together(tiny):
    def of_noise(**settings: Any) -> list[str]:
        return [said for said in notices(tiny("dqn", **settings)) if "noisy" in said]

    (said,) = of_noise(noisy=True, exploration_final_eps=0.2)
    assert "noisy is true, so exploration_final_eps has no effect" in said
    assert of_noise(noisy=True) == of_noise(exploration_final_eps=0.2) == []


class Unending(Pictures):
    """No episode ends by itself."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


class Late(Unending):
    """Ends when it is late."""

    time = 0

    def step(self, action: Any) -> Any:
        self.time += 1
        return self.observation_space.sample(), 0.0, self.time % 1000 == 0, False, {}


class Slow(Unending):
    def step(self, action: Any) -> Any:
        time.sleep(0.002)
        return super().step(action)


gymnasium.register("Unending-v0", entry_point=Unending)


@pytest.mark.parametrize("env_backend", ["sync", "async"])
def test_an_environment_that_never_ends(tiny, env_backend, monkeypatch):
    def said(factory: Any, **settings: Any) -> list[str]:
        found: list[str] = []
        config = tiny("ppo", env_backend=env_backend, **{"env_id": "Unending"} | settings)
        settle_rebuilding(config, factory, found.append)
        return found

    assert said(Slow) == [], "what cannot be known in a second is not told"
    monkeypatch.setattr(determinism, "SECONDS_TO_END", 120.0)  # its 2,000 steps, however busy the machine is
    (found,) = said(Unending)
    assert found.startswith(
        "environment 'Unending' has no time limit and did not end within 2,000 random steps"
    )
    assert "wrap it in gymnasium.wrappers.TimeLimit" in found
    (found,) = said(None, env_id=f"{__name__}:Unending-v0")
    assert "set max_episode_steps" in found
    assert said(None, env_id=f"{__name__}:Unending-v0", env_kwargs={"max_episode_steps": 5_000}) == []
    assert said(lambda: gymnasium.wrappers.TimeLimit(Unending(), 5_000)) == []
    assert said(Late) == []
    assert said(Unending, rebuild_envs="off") == [], "nobody asked for a look at it"


@pytest.mark.filterwarnings("ignore:.*max_eval_episode_steps")
def test_a_run_says_so(tiny):
    (said,) = notices(tiny("ppo", env_id="Unending", max_eval_episode_steps=20), Unending)
    assert "has no time limit" in said


def test_an_image_that_is_flattened_by_the_config(tiny):
    (said,) = notices(tiny("ppo", env_id="Pictures", encoder="flat"), Pictures)
    assert "entry 'seen' of an observation is an image, but encoder 'flat'" in said
    assert notices(tiny("ppo", env_id="Pictures"), Pictures) == []
