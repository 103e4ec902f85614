"""What was allowed counts in the gradient, on every way to find it."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms import actor_critic_objective
from rl_training.config import TrainConfig
from rl_training.core.types import EnvSpec
from rl_training.data.rollout_buffer import RolloutBatch
from rl_training.experiment.building import build_parts
from rl_training.models.fast.backend import TorchBackend

ROWS = 12
SPACES: dict[str, Any] = {
    "discrete": spaces.Discrete(4),
    "multi-discrete": spaces.MultiDiscrete([3, 2]),
    "multi-binary": spaces.MultiBinary(2),
}


def gradient(space: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """Return the gradient of one masked minibatch."""
    with monkeypatch.context() as patch:
        if way == "autograd":
            patch.setattr(actor_critic_objective, "explicit_actor_critic", lambda *_: None)
        if way != "arrays":
            patch.setattr(actor_critic_objective, "fast_backend", TorchBackend)
        spec = EnvSpec(spaces.Box(-1, 1, (3,), np.float64), space, num_envs=2, masked=True)
        config = TrainConfig(algo="ppo", env_id="none", seed=0, num_envs=2).with_overrides(ent_coef=0.1)
        learner: Any = build_parts(config, spec).learner
        width = learner.policy.head.num_params * (2 if isinstance(space, spaces.MultiBinary) else 1)
        rng = np.random.default_rng(0)
        mask = rng.random((ROWS, width)) < 0.6
        mask[:, ::2] = True  # something is always allowed
        params = learner.policy.head.masked(rng.normal(size=(ROWS, learner.policy.head.num_params)), mask)
        numbers = {
            name: torch.from_numpy(rng.normal(size=ROWS)) for name in ("values", "advantages", "returns")
        }
        rows = RolloutBatch(
            obs=torch.from_numpy(rng.normal(size=(ROWS, 3))),
            actions=torch.from_numpy(learner.policy.head.sample(params, rng)[0]),
            logprobs=torch.full((ROWS,), -1.0),
            action_masks=torch.from_numpy(mask),
            **numbers,
        )
        assert not mask.all()
        settings = {"clip_coef": 0.2, "ent_coef": 0.1, "vf_coef": 0.5}
        _, gradients = learner.objective.forward(learner.prepared(rows), **settings)
        learner.objective.backward(gradients)
        return learner.optimizer.gradient.clone()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("way", ["arrays", "tensors"])
def test_masks_count_alike_on_every_way(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = gradient(SPACES[name], "autograd", monkeypatch)
    assert expected.any()
    torch.testing.assert_close(gradient(SPACES[name], way, monkeypatch), expected, rtol=1e-10, atol=1e-12)
