"""The package against examples/a2c_cartpole_reference.py: two implementations, one arithmetic, in float64."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.a2c import A2CConfig, A2CLearner
from rl_training.config import TrainConfig, load_config
from rl_training.core.types import Progress
from rl_training.data.sources import RolloutSource
from rl_training.envs.factory import make_vector_env
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment.agent import build_parts
from rl_training.runtime.collector import Collector

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "a2c_cartpole_reference.py"
PLAIN: dict[str, Any] = {}
OTHERS = {
    "num_envs": 3, "num_steps": 16, "gae_lambda": 0.9, "normalize_advantage": True, "ent_coef": 0.01,
    "vf_coef": 0.25, "learning_rate": 2e-3, "gamma": 0.98, "max_grad_norm": 10.0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def float64_on_one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the script does: small networks train fastest so
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("a2c_cartpole_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Package:
    """The package's parts for the script's settings, driven as the trainer drives them."""

    def __init__(self, args: Any) -> None:
        settings = A2CConfig(
            num_steps=args.num_steps,
            learning_rate=args.learning_rate,
            gamma=args.gamma,
            gae_lambda=args.gae_lambda,
            normalize_advantage=args.normalize_advantage,
            ent_coef=args.ent_coef,
            vf_coef=args.vf_coef,
            max_grad_norm=args.max_grad_norm,
        )
        self.config = TrainConfig(
            algo="a2c",
            env_id=args.env_id,
            seed=args.seed,
            total_timesteps=args.total_timesteps,
            num_envs=args.num_envs,
            env_kwargs={"max_episode_steps": args.max_episode_steps},
            algorithm=settings,
        )
        self.stepper = VectorStepper(make_vector_env(self.config))
        parts = build_parts(self.config, self.stepper.spec)
        assert isinstance(parts.learner, A2CLearner)
        assert isinstance(parts.source, RolloutSource)
        self.learner, self.source = parts.learner, parts.source
        self.collector = Collector(self.stepper, self.learner.explorer, self.source)
        self.progress = Progress(total_timesteps=args.total_timesteps)
        self.stepper.reset()

    def collect(self) -> None:
        counted = self.collector.collect(self.source.steps_per_collect, self.progress)
        self.progress = self.progress.advanced(timesteps=counted)

    def train(self) -> tuple[int, int, int]:
        """Return how many episodes were cut off, how many gradients were clipped, and how many were not."""
        truncations = clipped = whole = 0
        while not self.progress.done:
            self.collect()
            truncations += int((self.source.buffer.final_values != 0).sum())
            for batch in self.source.batches(self.progress):
                result = self.learner.update(batch, self.progress)
                self.progress = self.progress.advanced(updates=1)
                above = float(result.metrics["grad_norm"]) > self.learner.config.max_grad_norm
                clipped, whole = clipped + above, whole + (not above)
        return truncations, clipped, whole


def script_parameters(agent: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach() for p in agent.parameters()]


def package_parameters(learner: A2CLearner) -> list[torch.Tensor]:
    network = learner.policy.network
    actor = [*network.actor_body.parameters(), *network.actor_head.parameters()]
    assert network.critic_body is not None
    return [
        p.detach() for p in [*actor, *network.critic_body.parameters(), *network.critic_head.parameters()]
    ]


def test_the_script_has_the_settings_of_the_preset(script: ModuleType) -> None:
    args = script.Args()
    preset = load_config(ROOT / "configs" / "a2c" / "cartpole.yaml")
    ours = Package(args).config
    assert ours.algorithm == preset.algorithm == A2CConfig()
    for name in ("env_id", "total_timesteps", "num_envs", "seed"):
        assert getattr(ours, name) == getattr(preset, name)


def test_same_seed_gives_the_same_initial_parameters(script: ModuleType) -> None:
    args = script.Args(max_episode_steps=50)
    agent = script.Agent(4, 2, torch.Generator().manual_seed(args.seed))
    for ours, theirs in zip(package_parameters(Package(args).learner), script_parameters(agent), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("settings", [PLAIN, OTHERS], ids=["defaults", "other-settings"])
def test_same_batch_gives_the_same_loss_and_gradients(
    script: ModuleType, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = script.Args(max_episode_steps=50, seed=3, **settings)
    package = Package(args)
    package.collect()
    (batch,) = package.source.batches(package.progress)
    agent = script.Agent(4, 2, torch.Generator().manual_seed(args.seed))
    rng = np.random.default_rng(0)
    for ours, theirs in zip(package.learner.optimizer.parameters, agent.parameters(), strict=True):
        noise = torch.as_tensor(rng.normal(size=tuple(theirs.shape))) * 0.2
        ours.data += noise
        theirs.data += noise  # away from the first, nearly uniform policy
    rows = {n: getattr(batch, n) for n in ("obs", "actions", "advantages", "returns")}
    reference = script.loss_on(agent, rows, args)
    reference_gradients = torch.autograd.grad(reference, list(agent.parameters()))
    assert max(float(gradient.abs().max()) for gradient in reference_gradients) > 1e-2

    seen: list[torch.Tensor] = []

    def differentiate(loss: torch.Tensor, learning_rate: torch.Tensor) -> torch.Tensor:
        seen.extend([loss.detach(), *torch.autograd.grad(loss, package.learner.optimizer.parameters)])
        return torch.zeros(())

    monkeypatch.setattr(package.learner.optimizer, "minimize", differentiate)
    package.learner.update(batch, package.progress)
    for ours, theirs in zip(seen, [reference.detach(), *reference_gradients], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("settings", [PLAIN, OTHERS], ids=["defaults", "other-settings"])
def test_same_seed_gives_the_same_parameters_after_several_updates(
    script: ModuleType, settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    args = script.Args(max_episode_steps=30, total_timesteps=4800, seed=7, **settings)
    agent, mean_return = script.train(args)
    package = Package(args)
    truncations, clipped, whole = package.train()
    assert truncations > 10, "the comparison must cover truncated episodes"
    assert clipped > 10, "the comparison must cover clipped gradients"
    assert settings == PLAIN or whole > 10, "the comparison must cover gradients below the limit"
    assert package.collector.episodes.means()["rollout/ep_rew_mean"] == mean_return
    initial = script.Agent(4, 2, torch.Generator().manual_seed(args.seed))
    moved = [
        float((a - b).abs().max())
        for a, b in zip(script_parameters(agent), script_parameters(initial), strict=True)
    ]
    assert min(moved) > 1e-2, "nothing was learned, so nothing was compared"
    for ours, theirs in zip(package_parameters(package.learner), script_parameters(agent), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8)


def test_the_script_runs_from_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--total-timesteps", "400", "--seed", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    text, _, number = done.stdout.strip().splitlines()[-1].rpartition(" ")
    assert text == "mean return of the last 100 training episodes:"
    assert 8 < float(number) <= 500
    assert list(tmp_path.iterdir()) == []
