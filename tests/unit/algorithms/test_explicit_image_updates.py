"""Learning from images with encoders that know their own backward: the same agent as by autograd, step for step."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.components import BuildContext, Parts
from rl_training.core.errors import RunFault
from rl_training.core.types import EnvSpec, Progress
from rl_training.data.replay_buffer import Transitions
from rl_training.data.rollout_buffer import RolloutBatch
from rl_training.models.cnn import ImpalaCNN, NatureCNN
from rl_training.models.fast import networks
from rl_training.policies import base

ROWS, ACTIONS = 12, 3
PLANES, PIXELS = (spaces.Box(0, 255, shape, np.uint8) for shape in ((4, 40, 40), (40, 40, 3)))
SMALL: dict[str, Any] = {"hidden_sizes": (), "features_dim": 8, "learning_rate": 1e-2}
OFF = SMALL | {"buffer_size": 32, "batch_size": ROWS}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", SMALL | {"num_steps": 6, "batch_size": 8, "update_epochs": 2}),
    "ppo hidden": ("ppo", SMALL | {"num_steps": 6, "hidden_sizes": (8,), "shared_network": True, "batch_size": 12}),
    "ppo two encoders": ("ppo", SMALL | {"num_steps": 6, "batch_size": 12, "share_encoder": False}),
    "a2c": ("a2c", SMALL | {"num_steps": 6}),
    "dqn": ("dqn", OFF | {"target_update_every_timesteps": 4}),
    "dqn double": ("dqn", OFF | {"hidden_sizes": (8,), "double": True, "target_update_every_updates": 1}),
    "dqn c51": ("dqn", OFF | {"distribution": "c51", "num_atoms": 5}),
}  # fmt: skip


@pytest.fixture
def double() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def build(name: str, space: spaces.Box, encoder: Any = NatureCNN) -> Parts:
    algo, settings = CASES[name]
    config = ALGORITHMS[algo].config_class(**settings)
    spec = EnvSpec(space, spaces.Discrete(ACTIONS), 2)
    return ALGORITHMS[algo].build(config, BuildContext(spec, 0, encoder=encoder))


def batch(name: str, space: spaces.Box) -> Any:
    rng = np.random.default_rng(3)
    images = [torch.from_numpy(rng.integers(0, 256, (ROWS, *space.shape), np.uint8)) for _ in range(2)]
    actions = torch.from_numpy(rng.integers(0, ACTIONS, ROWS))
    numbers = [
        torch.from_numpy(column).to(torch.get_default_dtype()) for column in rng.normal(size=(4, ROWS))
    ]
    if CASES[name][0] == "dqn":
        return Transitions(images[0], actions, numbers[0], numbers[1], images[1], torch.arange(ROWS))
    return RolloutBatch(images[0], actions, *numbers)


def learned(name: str, space: spaces.Box) -> tuple[str, np.ndarray, np.ndarray]:
    """Return the path, and after some updates all weights and what they say of a few images."""
    parts = build(name, space)
    rows = batch(name, space)
    for number in range(3):
        parts.learner.update(rows, Progress(timesteps=4 * number, updates=number, total_timesteps=100))
    policy: Any = parts.learner.policy
    seen = rows.obs[:2].numpy()
    said = policy._values(seen, None) if CASES[name][0] == "dqn" else np.stack(policy.outputs(seen)[0])
    return parts.learner.update_path, parts.learner.optimizer.flat.numpy().copy(), said


@pytest.mark.parametrize("space", [PLANES, PIXELS], ids=["planes", "pixels"])
@pytest.mark.parametrize("name", CASES)
def test_both_ways_learn_and_say_the_same(
    name: str, space: spaces.Box, double: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, weights, said = learned(name, space)
    for module in (networks, base):
        monkeypatch.setattr(module, "explicit_encoder", lambda *_: None)
    other_path, other_weights, other_said = learned(name, space)
    assert path.startswith("explicit")
    assert "after" not in path
    assert "autograd" in other_path
    np.testing.assert_allclose(weights, other_weights, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(said, other_said, rtol=1e-9, atol=1e-9)


def test_any_other_encoder_is_left_to_autograd() -> None:
    assert build("ppo", PLANES, ImpalaCNN).learner.update_path == "explicit after autograd"
    assert build("dqn", PLANES, ImpalaCNN).learner.update_path == "autograd"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_a_number_that_is_not_finite_never_reaches_an_environment(name: str) -> None:
    policy: Any = build(name, PLANES).learner.policy
    with torch.no_grad():
        next(policy.network.parameters()).fill_(torch.nan)
    with pytest.raises(RunFault, match="NatureCNN returned values that are not finite while acting"):
        policy.act(np.zeros((2, 4, 40, 40), np.uint8), (), deterministic=True, rng=np.random.default_rng(0))
