"""What the comparisons with the reference scripts share: loading a script, and driving the package's parts."""

import contextlib
import io
import runpy
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from loading import load_file
from rl_training.config import AlgorithmConfig, TrainConfig
from rl_training.core.types import EnvSpec, Progress, UpdateResult
from rl_training.datasets.dataset import Dataset
from rl_training.envs.factory import EnvFactory, make_vector_env
from rl_training.envs.stepper import VectorStepper
from rl_training.envs.stepper_factory import training_stepper
from rl_training.experiment.building import build_parts
from rl_training.runtime.metrics import RecentEpisodes
from rl_training.runtime.sampler import LocalSampler

ROOT = Path(__file__).parents[2]


def load_script(name: str) -> ModuleType:
    """Import `examples/<name>.py`."""
    return load_file(f"examples/{name}.py")


def printed_return(name: str, folder: Path, *flags: str) -> float:
    """Run a script's command line in an empty folder that must stay so; return the number it ends with."""
    printed, arguments, dtype = io.StringIO(), sys.argv, torch.get_default_dtype()
    sys.argv = [str(ROOT / "examples" / f"{name}.py"), *flags]
    torch.set_default_dtype(torch.float32)
    try:
        with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
            runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        sys.argv = arguments
        torch.set_default_dtype(dtype)
    return last_number(printed.getvalue(), folder)


def return_printed_by_a_process(name: str, folder: Path, *flags: str) -> float:
    """The same as a user does it: slower by all that a process must import."""
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), *flags]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return last_number(done.stdout, folder)


def last_number(printed: str, folder: Path) -> float:
    """Return the mean return that the last line tells; nothing may be left in the folder."""
    text, _, number = printed.strip().splitlines()[-1].rpartition(" ")
    assert text.startswith("mean return of the last ")
    assert text.endswith(" training episodes:")
    assert list(folder.iterdir()) == []
    return float(number)


class CountingStepper(VectorStepper):
    """Counts how episodes end, as a comparison without both kinds of end proves little; and lost lives."""

    terminations = truncations = cuts = 0

    def step(self, action: Any) -> None:
        super().step(action)
        self.terminations += int(self.out.terminated.sum())
        self.truncations += int(self.out.truncated.sum())
        self.cuts += int(self.out.cut.sum())


class Driven:
    """The package's parts for a config, driven as the trainer drives them."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        factory: EnvFactory | None = None,
        clip_reward: bool = False,
        stepper: Any = None,
    ) -> None:
        self.config = config
        masked = config.use_action_masks == "on"
        self.stepper = stepper or CountingStepper(
            make_vector_env(config, factory=factory), clip_reward=clip_reward, masked=masked
        )
        parts = build_parts(config, self.stepper.spec)
        self.learner: Any = parts.learner
        self.source: Any = parts.source
        self.sampler = LocalSampler(self.stepper, parts.actor.explorer, self.source)
        self.progress = Progress(total_timesteps=config.total_timesteps)
        self.episodes = RecentEpisodes()
        self.stepper.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the learner, with that of the explorer beside it."""
        state = self.learner.state_dict()
        explorer = self.sampler.explorer.state_dict()
        return {**state, "learner": {**state.get("learner", {}), "explorer": explorer}}

    def collect(self) -> None:
        collected = self.sampler.collect(self.source.steps_per_collect, self.progress)
        self.progress = self.progress.advanced(timesteps=collected.timesteps)
        self.episodes.add(collected.episodes)

    def updates(self) -> Iterator[UpdateResult]:
        """Spend the budget; yield what each update said, before the next one changes anything."""
        while not self.progress.done:
            self.collect()
            for batches in self.source.batches(self.progress):
                for batch in one_by_one(batches, self.source):
                    result = self.learner.update(batch, self.progress)
                    self.source.feedback(batch, result)
                    self.progress = self.progress.advanced(updates=result.updates)
                    yield result

    def train(self) -> list[UpdateResult]:
        """Spend the budget; return what the updates said."""
        return list(self.updates())

    def close(self) -> None:
        """Close the environments."""
        self.stepper.close()


def one_by_one(batches: Any, source: Any) -> Iterator[Any]:
    """Yield the batches that a source gives together; a rollout is one."""
    size = getattr(source, "batch_size", len(batches))
    yield from batches.split(size) if len(batches) > size else [batches]


class DrivenByDataset(Driven):
    """The same for a run that learns from a dataset and collects nothing."""

    def __init__(self, config: TrainConfig, dataset: Dataset) -> None:
        self.config = config
        spec = EnvSpec(dataset.observation_space, dataset.action_space, config.num_envs)
        parts = build_parts(config, spec, dataset=dataset)
        self.learner, self.source = parts.learner, parts.source
        self.progress = Progress(total_timesteps=0, total_updates=config.total_updates)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the learner."""
        state: dict[str, Any] = self.learner.state_dict()
        return state

    def collect(self) -> None:
        """Do nothing: all data is there."""

    def close(self) -> None:
        """Do nothing: there are no environments."""


class Package(Driven):
    """The package's parts for a script's settings."""

    def __init__(
        self,
        algo: str,
        settings: type[AlgorithmConfig],
        args: Any,
        *,
        env_id: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        use_action_masks: Literal["on", "off"] = "off",
        **others: Any,
    ) -> None:
        """`args` are the script's, with the config's names; `others` are settings the script has otherwise.

        `env_id` and more `env_kwargs` are for a script whose environment is no choice.
        """
        given = asdict(args)
        config = TrainConfig(
            algo=algo,
            env_id=env_id or given.pop("env_id"),
            seed=given.pop("seed"),
            total_timesteps=given.pop("total_timesteps"),
            num_envs=given.pop("num_envs", 1),
            env_kwargs={"max_episode_steps": given.pop("max_episode_steps"), **(env_kwargs or {})},
            use_action_masks=use_action_masks,
            algorithm=settings(**given | others),
        )
        super().__init__(config)


class GameParts(Driven):
    """The package's parts for a script's settings in a game with several agents."""

    def __init__(self, algo: str, settings: type[AlgorithmConfig], args: Any, **run: Any) -> None:
        """`run` are settings of the run; of the script's, those that the algorithm has are used."""
        known = {item.name for item in fields(settings)}
        given = {name: value for name, value in asdict(args).items() if name in known}
        config = TrainConfig(
            algo=algo,
            env_id=f"pettingzoo://{args.game}",
            seed=args.seed,
            total_timesteps=args.total_timesteps,
            num_envs=args.num_envs,
            algorithm=settings(**given, encoder="flat"),  # type: ignore[arg-type]  # of the algorithm
            **run,
        )
        super().__init__(config, stepper=training_stepper(config, None))

    @property
    def parameters(self) -> list[Tensor]:
        """Those of the actor, then of the critic, in the order of the scripts."""
        network = self.learner.policy.network
        layers = network if hasattr(network, "actor_body") else network.network
        modules = (layers.actor_body, layers.actor_head, layers.critic_body, layers.critic_head)
        return [tensor for module in modules for tensor in parameters_of(module)]


def parameters_of(module: torch.nn.Module) -> list[Tensor]:
    return [p.detach() for p in module.parameters()]


def assert_close(ours: Iterable[Tensor], theirs: Iterable[Tensor], atol: float, name: str = "") -> None:
    """Compare tensor by tensor; there must be some, and as many on both sides."""
    pairs = list(zip(ours, theirs, strict=True))
    assert pairs, f"nothing to compare {name}"
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=0, atol=atol, msg=lambda text: f"{name}: {text}")


def moves(now: Iterable[Tensor], before: Iterable[Tensor]) -> list[float]:
    """Return the largest change of each tensor."""
    return [float((a - b).detach().abs().max()) for a, b in zip(now, before, strict=True)]
