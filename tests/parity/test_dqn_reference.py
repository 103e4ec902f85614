"""The package against examples/dqn_cartpole_reference.py: two implementations, one arithmetic, in float64."""

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

from rl_training.algorithms.dqn import DQNConfig, DQNLearner
from rl_training.config import TrainConfig, load_config
from rl_training.core.types import Progress
from rl_training.data.sources import ReplaySource
from rl_training.envs.factory import make_vector_env
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment.agent import build_parts
from rl_training.runtime.collector import Collector

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "dqn_cartpole_reference.py"
SHORT = {
    "max_episode_steps": 30, "total_timesteps": 4096, "learning_starts": 500, "exploration_fraction": 0.4,
    "seed": 7, "gradient_steps": 16, "batch_size": 32,
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "double": {"double": True},
    # the ring goes round, and some rounds of updates keep the target network of the round before
    "small-buffer-slow-target": {
        "buffer_size": 1000, "target_update_every": 300, "train_freq": 100, "gradient_steps": 8,
        "max_episode_steps": 15,
    },
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
    spec = importlib.util.spec_from_file_location("dqn_cartpole_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Package:
    """The package's parts for the script's settings, driven as the trainer drives them."""

    def __init__(self, args: Any) -> None:
        settings = DQNConfig(
            learning_rate=args.learning_rate,
            batch_size=args.batch_size,
            buffer_size=args.buffer_size,
            learning_starts=args.learning_starts,
            gamma=args.gamma,
            target_update_every_timesteps=args.target_update_every,
            train_freq=args.train_freq,
            gradient_steps=args.gradient_steps,
            exploration_initial_eps=args.exploration_initial_eps,
            exploration_final_eps=args.exploration_final_eps,
            exploration_fraction=args.exploration_fraction,
            max_grad_norm=args.max_grad_norm,
            double=args.double,
        )
        self.config = TrainConfig(
            algo="dqn",
            env_id=args.env_id,
            seed=args.seed,
            total_timesteps=args.total_timesteps,
            num_envs=1,
            env_kwargs={"max_episode_steps": args.max_episode_steps},
            algorithm=settings,
        )
        self.stepper = VectorStepper(make_vector_env(self.config))
        parts = build_parts(self.config, self.stepper.spec)
        assert isinstance(parts.learner, DQNLearner)
        assert isinstance(parts.source, ReplaySource)
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
            truncations += len(self.truncated_rows(self.source.steps_per_collect + 1))
            for batch in self.source.batches(self.progress):
                self.learner.update(batch, self.progress)
                self.progress = self.progress.advanced(updates=1)
        return truncations

    def truncated_rows(self, newest: int) -> np.ndarray:
        """Return the newest rows whose episode was cut off: the task goes on, but the next row begins elsewhere."""
        buffer = self.source.buffer
        count = min(newest, len(buffer))
        index = np.arange(buffer.total_rows - count, buffer.total_rows) % buffer.capacity
        rows = buffer.rows[index]  # oldest first; of one environment, so each follows the one before
        jumps = (rows["next_obs"][:-1] != rows["obs"][1:]).any(1)
        return index[:-1][jumps & (rows["discounts"][:-1] > 0)]


def script_parameters(network: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach() for p in network.parameters()]


def package_parameters(learner: DQNLearner) -> list[torch.Tensor]:
    network = learner.policy.network
    return [p.detach() for p in [*network.body.parameters(), *network.advantage.parameters()]]


def test_the_script_has_the_settings_of_the_preset(script: ModuleType) -> None:
    args = script.Args()
    preset = load_config(ROOT / "configs" / "dqn" / "cartpole.yaml")
    ours = Package(args).config
    assert ours.algorithm == preset.algorithm
    for name in ("env_id", "total_timesteps", "num_envs", "seed"):
        assert getattr(ours, name) == getattr(preset, name)


def test_same_seed_gives_the_same_initial_parameters(script: ModuleType) -> None:
    args = script.Args(**SHORT)
    network = script.q_network(4, 2, torch.Generator().manual_seed(args.seed))
    learner = Package(args).learner
    target = [p.detach() for p in learner.target.network.parameters()]
    for parameters in (package_parameters(learner), target):
        for ours, theirs in zip(parameters, script_parameters(network), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("double", [False, True], ids=["plain", "double"])
def test_same_batch_gives_the_same_loss_and_gradients(
    script: ModuleType, double: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = script.Args(**SHORT | {"double": double, "batch_size": 600})
    package = Package(args)
    while not package.source.owed:
        package.collect()
    batch = next(package.source.batches(package.progress))
    cut_off = package.truncated_rows(args.total_timesteps)
    assert np.isin(cut_off, batch.indices.numpy()).any()
    assert 0 < int((batch.discounts == 0).sum()) < len(batch)
    target = script.q_network(4, 2, torch.Generator().manual_seed(args.seed))
    network = script.q_network(4, 2, torch.Generator().manual_seed(args.seed))
    rng = np.random.default_rng(0)
    for ours, theirs in zip(package.learner.optimizer.parameters, network.parameters(), strict=True):
        noise = torch.as_tensor(rng.normal(size=tuple(theirs.shape))) * 0.1
        ours.data += noise
        theirs.data += (
            noise  # away from the target network, so that errors lie on both sides of Huber's threshold
        )
    rows = {n: getattr(batch, n) for n in ("obs", "actions", "rewards", "next_obs")}
    rows["terminated"] = batch.discounts == 0
    reference = script.loss_on(network, target, rows, args)
    reference_gradients = torch.autograd.grad(reference, list(network.parameters()))
    args.double = not double
    other = script.loss_on(network, target, rows, args)
    assert float((other - reference).detach().abs()) > 1e-4, "the two choices of the next action must differ"

    seen: list[torch.Tensor] = []

    def differentiate(loss: torch.Tensor, learning_rate: torch.Tensor) -> torch.Tensor:
        seen.extend([loss.detach(), *torch.autograd.grad(loss, package.learner.optimizer.parameters)])
        return torch.zeros(())

    monkeypatch.setattr(package.learner.optimizer, "minimize", differentiate)
    # at timestep 0, where the target network is not yet due to be copied
    errors = package.learner.update(batch, Progress(total_timesteps=args.total_timesteps)).priorities
    assert errors is not None
    assert 0.1 < float((errors > 1).double().mean()) < 0.9
    for ours, theirs in zip(seen, [reference.detach(), *reference_gradients], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", SETTINGS)
def test_same_seed_gives_the_same_parameters_after_several_updates(
    script: ModuleType, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = script.Args(**SHORT | SETTINGS[name])
    network, mean_return = script.train(args)
    package = Package(args)
    truncations = package.train()
    rounds = -(-args.total_timesteps // args.train_freq) - args.learning_starts // args.train_freq
    assert package.progress.updates == rounds * args.gradient_steps
    assert truncations > 10, "the comparison must cover truncated episodes"
    assert (package.source.buffer.total_rows > args.buffer_size) == (name == "small-buffer-slow-target")
    assert package.learner.explorer.epsilon(package.progress) == pytest.approx(args.exploration_final_eps)
    assert package.collector.episodes.means()["rollout/ep_rew_mean"] == mean_return
    initial = script.q_network(4, 2, torch.Generator().manual_seed(args.seed))
    moved = [
        float((a - b).abs().max())
        for a, b in zip(script_parameters(network), script_parameters(initial), strict=True)
    ]
    assert min(moved) > 1e-2, "nothing was learned, so nothing was compared"
    for ours, theirs in zip(package_parameters(package.learner), script_parameters(network), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8)


def test_the_script_runs_from_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--total-timesteps", "1024", "--gradient-steps", "16", "--double"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    text, _, number = done.stdout.strip().splitlines()[-1].rpartition(" ")
    assert text == "mean return of the last 100 training episodes:"
    assert 8 < float(number) <= 500
    assert list(tmp_path.iterdir()) == []
