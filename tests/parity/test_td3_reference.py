"""The package against examples/td3_pendulum_reference.py: two implementations, one arithmetic, in float64."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from rl_training.algorithms.td3 import TD3Config, TD3Learner
from rl_training.config import TrainConfig, load_config
from rl_training.core.types import Progress
from rl_training.data.replay_buffer import Transitions
from rl_training.data.sources import ReplaySource
from rl_training.envs.factory import make_vector_env
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment.agent import build_parts
from rl_training.models.ensemble import EnsembleMLP
from rl_training.runtime.collector import Collector

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "td3_pendulum_reference.py"
SMALL = {"hidden_sizes": (24, 16), "batch_size": 32, "learning_starts": 60, "max_episode_steps": 40}


class FragilePendulum(PendulumEnv):
    """Breaks when it swings too fast; two motors with lopsided bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Box(np.float32([-1.0, -0.5]), np.float32([0.5, 2.0]))

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        obs, reward, _, truncated, info = super().step([action.sum()])
        return obs, reward, bool(abs(obs[2]) > 4), truncated, info


gymnasium.register("Td3FragilePendulum-v0", entry_point=FragilePendulum, disable_env_checker=True)
FRAGILE = "Td3FragilePendulum-v0"


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the script and the package train
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("td3_pendulum_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Package:
    """The package's parts for the script's settings, driven as the trainer drives them."""

    def __init__(self, args: Any) -> None:
        settings = TD3Config(
            learning_rate=args.learning_rate,
            buffer_size=args.buffer_size,
            batch_size=args.batch_size,
            learning_starts=args.learning_starts,
            gamma=args.gamma,
            hidden_sizes=args.hidden_sizes,
            tau=args.tau,
            policy_delay=args.policy_delay,
            target_policy_noise=args.target_policy_noise,
            target_noise_clip=args.target_noise_clip,
            action_noise_sigma=args.action_noise_sigma,
        )
        config = TrainConfig(
            algo="td3",
            env_id=args.env_id,
            seed=args.seed,
            total_timesteps=args.total_timesteps,
            num_envs=1,
            env_kwargs={"max_episode_steps": args.max_episode_steps},
            algorithm=settings,
        )
        self.stepper = VectorStepper(make_vector_env(config))
        parts = build_parts(config, self.stepper.spec)
        assert isinstance(parts.learner, TD3Learner)
        assert isinstance(parts.source, ReplaySource)
        self.learner, self.source = parts.learner, parts.source
        self.collector = Collector(self.stepper, self.learner.explorer, self.source)
        self.progress = Progress(total_timesteps=args.total_timesteps)
        self.stepper.reset()
        self.terminations = self.truncations = 0

    def train(self) -> None:
        while not self.progress.done:
            counted = self.collector.collect(self.source.steps_per_collect, self.progress)
            self.progress = self.progress.advanced(timesteps=counted)
            self.terminations += int(self.stepper.out.terminated.sum())
            self.truncations += int(self.stepper.out.truncated.sum())
            for batch in self.source.batches(self.progress):
                self.learner.update(batch, self.progress)
                self.progress = self.progress.advanced(updates=1)


def split(members: list[torch.Tensor], critics: EnsembleMLP) -> list[torch.Tensor]:
    """Tensors of batched critics, weights then biases, in the order of two networks one after the other."""
    weights, biases = members[: len(critics.weights)], members[len(critics.weights) :]
    return [
        tensor
        for member in range(critics.num_members)
        for weight, bias in zip(weights, biases, strict=True)
        for tensor in (weight[member].T, bias[member, 0])
    ]


def package_tensors(learner: TD3Learner) -> dict[str, list[torch.Tensor]]:
    critics, target = learner.critics, learner.target_critics.network
    assert isinstance(target, EnsembleMLP)
    return {
        "actor": [p.detach() for p in learner.policy.network.parameters()],
        "critics": split([p.detach() for p in critics.parameters()], critics),
        "target actor": list(learner.target_actor.network.parameters()),
        "target critics": split(list(target.parameters()), target),
    }


def script_tensors(agent: Any) -> dict[str, list[torch.Tensor]]:
    return {
        "actor": [p.detach() for p in agent.actor.parameters()],
        "critics": [p.detach() for p in agent.critics.parameters()],
        "target actor": [p.detach() for p in agent.target_actor.parameters()],
        "target critics": [p.detach() for p in agent.target_critics.parameters()],
    }


def package_gradients(learner: TD3Learner) -> dict[str, list[torch.Tensor]]:
    """The gradients of the only update so far: of these Adam's mean holds a tenth."""
    found = {}
    for key in ("actor", "critic"):
        optimizer = getattr(learner, f"{key}_optimizer")
        parts = (optimizer.exp_avg / (1 - optimizer.betas[0])).split(
            [p.numel() for p in optimizer.parameters]
        )
        found[key] = [part.view_as(p) for part, p in zip(parts, optimizer.parameters, strict=True)]
    return found | {"critic": split(found["critic"], learner.critics)}


def script_gradients(agent: Any) -> dict[str, list[torch.Tensor]]:
    """What is left in `grad`, of the critics too: the actor's step must add nothing to theirs."""
    optimizers = {key: getattr(agent, f"{key}_optimizer") for key in ("actor", "critic")}
    return {
        key: [p.grad for p in optimizer.param_groups[0]["params"]] for key, optimizer in optimizers.items()
    }


def assert_same(
    ours: dict[str, list[torch.Tensor]], theirs: dict[str, list[torch.Tensor]], atol: float
) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name], f"nothing to compare in {name}"
        for a, b in zip(ours[name], theirs[name], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


def largest_move(now: Iterable[torch.Tensor], before: Iterable[torch.Tensor]) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(now, before, strict=True))


def test_defaults_are_those_of_the_preset(script: ModuleType) -> None:
    preset = load_config(ROOT / "configs" / "td3" / "pendulum.yaml")
    assert isinstance(preset.algorithm, TD3Config)
    known = asdict(preset) | asdict(preset.algorithm)
    settings = asdict(script.Args())
    del settings["max_episode_steps"]  # the script's own
    assert len(settings) > 8
    # what the script has no switch for
    fixed = {"num_critics": 2, "n_step": 1, "train_freq": 1, "gradient_steps": 1, "activation": "relu"}
    fixed |= {"num_envs": 1, "normalize_obs": False, "normalize_reward": False}
    fixed |= {"learning_rate_schedule": "constant", "action_noise": "gaussian"}
    expected = settings | fixed
    assert {name: known[name] for name in expected} == expected


@pytest.mark.parametrize("env_id", ["Pendulum-v1", FRAGILE])
def test_same_seed_gives_the_same_initial_parameters(script: ModuleType, env_id: str) -> None:
    args = script.Args(env_id=env_id, seed=5, **SMALL)
    env = script.Env(args)
    agent = script.Agent(env.obs_size, env.action_size, args)
    theirs = script_tensors(agent)
    assert largest_move(agent.critics[0].parameters(), agent.critics[1].parameters()) > 0.1, (
        "the critics differ"
    )
    assert_same(package_tensors(Package(args).learner), theirs, atol=0)


def test_same_batch_gives_the_same_losses_gradients_and_step(script: ModuleType) -> None:
    args = script.Args(env_id=FRAGILE, seed=3, **SMALL)
    package = Package(args)
    learner = package.learner
    agent = script.Agent(3, 2, args)
    rng = np.random.default_rng(0)
    for name, tensors in script_tensors(agent).items():
        for ours, theirs in zip(package_tensors(learner)[name], tensors, strict=True):
            shift = torch.as_tensor(rng.normal(size=tuple(theirs.shape))) * 0.3
            ours += shift  # away from the start, where targets equal what they follow;
            theirs += shift  # both are views of the parameters themselves
    size = 200
    batch = {
        "obs": torch.as_tensor(rng.normal(size=(size, 3))) * 3,
        "next_obs": torch.as_tensor(rng.normal(size=(size, 3))) * 3,
        "actions": torch.as_tensor(rng.uniform(-1, 1, (size, 2))),
        "rewards": torch.as_tensor(rng.normal(size=size)),
        "terminated": torch.as_tensor(rng.random(size) < 0.3).double(),
    }
    before = package_tensors(learner)
    before = {name: [tensor.clone() for tensor in tensors] for name, tensors in before.items()}
    assert_same(before, script_tensors(agent), atol=0)
    assert largest_move(before["critics"], before["target critics"]) > 0.1

    noise = torch.from_numpy(np.random.default_rng(9).standard_normal((size, 2)))
    assert 0 < (noise.abs() * args.target_policy_noise > args.target_noise_clip).sum() < size
    learner.noise_rng = np.random.default_rng(9)
    critic_loss = script.update_critics(agent, batch, noise, args)
    actor_loss = script.update_actor(agent, batch, args)
    transitions = Transitions(
        obs=batch["obs"],
        actions=batch["actions"],
        rewards=batch["rewards"],
        discounts=args.gamma * (1 - batch["terminated"]),
        next_obs=batch["next_obs"],
        indices=torch.arange(size),
    )
    progress = package.progress.advanced(updates=args.policy_delay - 1)  # the actor's turn has come
    metrics = learner.update(transitions, progress).metrics
    for name, reference in {"critic_loss": critic_loss, "actor_loss": actor_loss}.items():
        assert abs(float(reference)) > 1e-3
        torch.testing.assert_close(metrics[name], reference, rtol=0, atol=1e-10)
    assert_same(package_gradients(learner), script_gradients(agent), atol=1e-10)
    after = package_tensors(learner)
    for name, tensors in after.items():
        assert largest_move(tensors, before[name]) > 1e-4, f"{name} did not move"
    assert_same(after, script_tensors(agent), atol=1e-10)


@pytest.mark.parametrize(
    ("env_id", "buffer_size"),
    [("Pendulum-v1", 1000), (FRAGILE, 150)],
    ids=["time-limits", "ends-and-full-ring"],
)
def test_same_seed_gives_the_same_parameters_after_many_updates(
    script: ModuleType, env_id: str, buffer_size: int
) -> None:
    args = script.Args(env_id=env_id, buffer_size=buffer_size, total_timesteps=400, seed=7, **SMALL)
    agent, _ = script.train(args)
    package = Package(args)
    initial = package_tensors(package.learner)
    initial = {name: [tensor.clone() for tensor in tensors] for name, tensors in initial.items()}
    package.train()
    assert package.progress.updates == 400 - SMALL["learning_starts"]
    assert package.truncations >= 3, "the comparison must cover truncated episodes"
    assert package.terminations >= 3 or env_id != FRAGILE, "the comparison must cover finished tasks"
    theirs = script_tensors(agent)
    for name, tensors in theirs.items():
        assert largest_move(tensors, initial[name]) > 1e-2, f"{name} learned nothing, so nothing was compared"
    assert_same(package_tensors(package.learner), theirs, atol=1e-8)


def test_it_runs_from_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--total-timesteps", "220", "--learning-starts", "200"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = re.search(
        r"^mean return of the last 20 training episodes: (-\d+\.\d)$", done.stdout, re.MULTILINE
    )
    assert found is not None, done.stdout
    assert -2000 < float(found[1]) < 0
    assert list(tmp_path.iterdir()) == []
