"""The package against examples/ppo_cartpole_reference.py: two implementations, one arithmetic, in float64."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.ppo import PPOConfig, PPOLearner, normalized, ppo_loss
from rl_training.config import TrainConfig
from rl_training.core.types import Progress
from rl_training.data.sources import RolloutSource
from rl_training.envs.factory import make_vector_env
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment.agent import build_parts
from rl_training.runtime.collector import Collector

SCRIPT = Path(__file__).parents[2] / "examples" / "ppo_cartpole_reference.py"
MULTI = {"num_envs": 4, "num_steps": 64, "batch_size": 96, "update_epochs": 3}  # last minibatch is smaller
SINGLE = {"num_envs": 8, "num_steps": 32, "batch_size": 256, "update_epochs": 5}


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ppo_cartpole_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Package:
    """The package's parts for the script's settings, driven as the trainer drives them."""

    def __init__(self, args: Any) -> None:
        settings = PPOConfig(
            num_steps=args.num_steps,
            batch_size=args.batch_size,
            update_epochs=args.update_epochs,
            learning_rate=args.learning_rate,
            learning_rate_schedule="linear",
            gamma=args.gamma,
            gae_lambda=args.gae_lambda,
            clip_coef=args.clip_coef,
            clip_coef_schedule="linear",
            ent_coef=args.ent_coef,
        )
        config = TrainConfig(
            algo="ppo",
            env_id=args.env_id,
            seed=args.seed,
            total_timesteps=args.total_timesteps,
            num_envs=args.num_envs,
            env_kwargs={"max_episode_steps": args.max_episode_steps},
            algorithm=settings,
        )
        self.stepper = VectorStepper(make_vector_env(config))
        parts = build_parts(config, self.stepper.spec)
        assert isinstance(parts.learner, PPOLearner)
        assert isinstance(parts.source, RolloutSource)
        self.learner, self.source = parts.learner, parts.source
        self.collector = Collector(self.stepper, self.learner.explorer, self.source)
        self.progress = Progress(total_timesteps=args.total_timesteps)
        self.stepper.reset()

    def collect(self) -> None:
        counted = self.collector.collect(self.source.steps_per_collect, self.progress)
        self.progress = self.progress.advanced(timesteps=counted)

    def train(self) -> int:
        truncations = 0
        while not self.progress.done:
            self.collect()
            truncations += int((self.source.buffer.final_values != 0).sum())
            for batch in self.source.batches(self.progress):
                self.learner.update(batch, self.progress)
        return truncations


def script_parameters(agent: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach() for p in agent.parameters()]


def package_parameters(learner: PPOLearner) -> list[torch.Tensor]:
    network = learner.policy.network
    actor = [*network.actor_body.parameters(), *network.actor_head.parameters()]
    assert network.critic_body is not None
    return [
        p.detach() for p in [*actor, *network.critic_body.parameters(), *network.critic_head.parameters()]
    ]


def test_same_seed_gives_the_same_initial_parameters(script: ModuleType) -> None:
    args = script.Args(max_episode_steps=50, **SINGLE)
    agent = script.Agent(4, 2, torch.Generator().manual_seed(args.seed))
    for ours, theirs in zip(package_parameters(Package(args).learner), script_parameters(agent), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_same_batch_gives_the_same_loss_and_gradients(script: ModuleType) -> None:
    args = script.Args(max_episode_steps=50, ent_coef=0.01, seed=3, **SINGLE)
    package = Package(args)
    package.collect()
    (batch,) = package.source.batches(package.progress)
    agent = script.Agent(4, 2, torch.Generator().manual_seed(args.seed))
    rng = np.random.default_rng(0)
    for ours, theirs in zip(package.learner.optimizer.parameters, agent.parameters(), strict=True):
        noise = torch.as_tensor(rng.normal(size=tuple(theirs.shape))) * 0.2
        ours.data += noise
        theirs.data += noise  # away from the collecting policy, so that ratios are clipped on both sides
    assert isinstance(batch.obs, torch.Tensor)
    rows = {n: getattr(batch, n) for n in ("obs", "actions", "logprobs", "advantages", "returns")}
    reference = script.loss_on(agent, rows, 0.1, args)
    reference_gradients = torch.autograd.grad(reference, list(agent.parameters()))

    logprobs, entropy, values = package.learner.policy.evaluate(batch.obs, batch.actions)
    losses = ppo_loss(
        {
            "logprobs": logprobs,
            "old_logprobs": batch.logprobs,
            "advantages": normalized(batch.advantages, None),
            "returns": batch.returns,
            "values": batch.values,
            "new_values": values,
            "entropy": entropy,
        },
        clip_coef=0.1,
        ent_coef=args.ent_coef,
        vf_coef=args.vf_coef,
    )
    assert 0.1 < losses["clip_fraction"] < 0.9
    torch.testing.assert_close(losses["loss"], reference, rtol=0, atol=1e-10)
    gradients = torch.autograd.grad(losses["loss"], package.learner.optimizer.parameters)
    for ours, theirs in zip(gradients, reference_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("settings", [SINGLE, MULTI], ids=["single-minibatch", "shuffled-minibatches"])
def test_same_seed_gives_the_same_parameters_after_several_updates(
    script: ModuleType, settings: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    args = script.Args(max_episode_steps=50, total_timesteps=5120, seed=7, ent_coef=0.01, **settings)
    agent, _ = script.train(args)
    package = Package(args)
    truncations = package.train()
    assert truncations > 10, "the comparison must cover truncated episodes"
    initial = script.Agent(4, 2, torch.Generator().manual_seed(args.seed))
    moved = [
        float((a - b).abs().max())
        for a, b in zip(script_parameters(agent), script_parameters(initial), strict=True)
    ]
    assert max(moved) > 1e-2, "nothing was learned, so nothing was compared"
    for ours, theirs in zip(package_parameters(package.learner), script_parameters(agent), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8)
