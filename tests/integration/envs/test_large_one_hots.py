"""Observations of very many categories: what one-hots take is told before a run, and refused if it is not there."""

import subprocess
import sys
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from rl_training.core.errors import UserError
from rl_training.experiment import resources
from rl_training.experiment.console import Console
from rl_training.experiment.start import train


class Wide(gymnasium.Env[Any, Any]):
    """Shows one of very many numbers; or two of them, in a Dict."""

    def __init__(self, count: int, several: bool = False) -> None:
        self.observation_space = spaces.Discrete(count)
        if several:
            self.observation_space = spaces.Dict({"a": spaces.MultiDiscrete([count - 2, 2])})
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, bool(self.np_random.random() < 0.3), False, {}


class Told(Exception):
    """Enough was heard."""


class Heard(Console):
    """Ends a run at the sentence that is waited for, and keeps those before it."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)
        if "one-hot" in text:
            raise Told


def told(config: Any, count: int, **settings: Any) -> str:
    console = Heard()
    with pytest.raises(Told):
        train(config, console=console, factory=lambda: Wide(count, **settings))
    return console.notices[-1]


SETTINGS: dict[str, Any] = {"env_id": "Wide", "rebuild_envs": "off", "use_action_masks": "off"}


@pytest.mark.parametrize("several", [False, True])
def test_what_takes_gigabytes_is_told(tiny, several):
    config = tiny("ppo", **SETTINGS, num_steps=512, hidden_sizes=[64])
    said = told(config, 1_000_000, several=several)
    # 512 steps * 2 environments * 4 MB, and four times a layer of 256 MB for each of two networks
    assert "observations become 1,000,000 numbers, because categories are one-hot encoded" in said
    assert "about 4.1 GB" in said
    assert "about 2.0 GB" in said
    config = tiny("dqn", **SETTINGS, batch_size=128, hidden_sizes=[8])
    assert "about 1.0 GB" in told(config, 1_000_000, several=several)


def test_what_is_small_is_not_told(tiny):
    console = Heard()
    train(tiny("ppo", **SETTINGS), console=console, factory=lambda: Wide(500))
    assert console.notices == []


@pytest.mark.parametrize(
    ("algo", "settings", "remedy"),
    [
        ("ppo", {"num_steps": 1024}, "fewer num_steps or num_envs"),
        ("dqn", {"batch_size": 2048}, "a smaller batch_size"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_built(tiny, tmp_path, monkeypatch, algo, settings, remedy):
    monkeypatch.setattr(resources, "available_memory", lambda: 4 * 10**9)
    with pytest.raises(UserError) as raised:
        train(tiny(algo, **SETTINGS, **settings), factory=lambda: Wide(1_000_000))
    said = str(raised.value)
    assert "one-hot encoding observations of 1,000,000 numbers needs" in said
    assert "but 4.0 GB are available" in said
    assert remedy in said
    assert not (tmp_path / "runs").exists()


def test_a_space_beyond_every_memory_is_refused(tiny):
    with pytest.raises(UserError, match=r"one-hot encoding observations of .* needs \d+ TB of memory"):
        train(tiny("dqn", **SETTINGS), factory=lambda: Wide(10**12))


def test_an_update_takes_what_was_told():
    """In a process of its own: a rollout of 1,024 rows of 200,000 numbers is 0.8 GB, and no more than twice that."""
    script = (
        "import resource, torch\n"
        "from gymnasium import spaces\n"
        "from rl_training.models.inputs import ObservationInputs\n"
        "inputs = ObservationInputs(spaces.Discrete(200_000))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "numbers = inputs.vector(torch.arange(1024))\n"
        "assert numbers.dtype == torch.float32 and float(numbers.sum()) == 1024.0\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert int(done.stdout) < 1.1 * 1024 * 200_000 * 4
