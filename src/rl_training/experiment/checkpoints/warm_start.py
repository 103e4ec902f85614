"""A new run that begins with what another has learned: its weights and statistics, and nothing else of it.

Optimizer, counters, replay data and random streams are those of a new run. What it begins with is copied into its
folder before that has a name, so that the other run is never needed again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

from rl_training.algorithms.components import Parts
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.types import EnvSpec, Progress
from rl_training.envs.stepper import saved_statistics
from rl_training.envs.wrapper_statistics import Statistics
from rl_training.experiment.agent import Agent, check_spaces
from rl_training.experiment.building import UserObjects
from rl_training.experiment.checkpoints.format import Checkpoint, read_checkpoint, restoring, write_checkpoint
from rl_training.experiment.checkpoints.trust import (
    Permission,
    refuse_foreign_encoder,
    refuse_foreign_module,
    refuse_missing_factory,
)
from rl_training.experiment.files import read_json
from rl_training.experiment.loading import check_algorithm
from rl_training.runtime.sampler import saved_envs

FOLDER = "started_from"
"""Within a run's folder: what it began with, as an agent that can be loaded."""
OF_THE_NETWORK = ("normalize_obs", "normalize_reward", "preprocessing")
OF_THE_ENVIRONMENT = ("env_id", "env_kwargs", "env_wrappers", "max_episode_steps", "preprocessing")
STATISTICS = ("episodes", "statistics")


@dataclass(frozen=True)
class Learned:
    """What a run begins with, and the record of where it came from."""

    checkpoint: Checkpoint
    record: dict[str, Any]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Learned":
        """Return what a checkpoint has learned."""
        manifest = read_json(checkpoint.path / "manifest.json")
        record = {
            "path": str(checkpoint.path.resolve()),
            "timesteps": checkpoint.progress.clock,
            "config_fingerprint": checkpoint.config.fingerprint(),
            "sha256": manifest["sha256"] if isinstance(manifest, dict) else None,
        }
        return cls(checkpoint, record)

    @property
    def notice(self) -> str:
        """What to tell before the run."""
        return (
            f"it starts with the weights of {self.record['path']}, trained for {self.record['timesteps']:,} steps; its "
            "optimizer, counters and random streams are new"
        )

    def check(self, config: TrainConfig, given: UserObjects) -> None:
        """Refuse another algorithm."""
        there = self.checkpoint.config.algo
        if there != config.algo:
            raise UserError(
                f"{self.checkpoint.path} is a {there} agent, but this is a run of {config.algo}; start from a run of "
                f"{config.algo}, or train {there}"
            )
        check_algorithm(self.checkpoint, given)

    @property
    def statistics(self) -> list[Statistics]:
        """The running statistics of wrappers, one entry per environment."""
        return saved_statistics(saved_envs(self.checkpoint.state))

    def put_into(self, config: TrainConfig, parts: Parts, spec: EnvSpec) -> None:
        """Give the networks their weights, and check that the statistics can be read."""
        source, state = self.checkpoint.path, self.checkpoint.state
        check_spaces(f"checkpoint {source}", config, spec, self.checkpoint.spec)
        with restoring(source):
            try:
                parts.learner.load_learned(state)
            except (RuntimeError, KeyError) as error:
                raise UserError(self._misfit(config, error)) from error
            _ = self.statistics

    def write(self, folder: Path, config: TrainConfig, parts: Parts, facts: dict[str, Any]) -> None:
        """Copy what was put into parts, so that the run can begin again without its origin."""
        envs = saved_envs(self.checkpoint.state)
        known = {name: envs[name] for name in STATISTICS if "statistics" in envs}
        state = parts.learner.learned_state() | {"sampler": {"envs": known}}
        write_checkpoint(folder / FOLDER, config=config, progress=Progress(), state=state, facts=facts)

    def _misfit(self, config: TrainConfig, error: Exception) -> str:
        there = self.checkpoint.config
        pairs = [(name, getattr(there, name), getattr(config, name)) for name in OF_THE_NETWORK]
        names = [item.name for item in fields(config.algorithm)]
        pairs += [
            (name, getattr(there.algorithm, name, None), getattr(config.algorithm, name)) for name in names
        ]
        others = ", ".join(
            f"{name} is {here} and was {before}" for name, before, here in pairs if here != before
        )
        reason = f"the settings differ: {others}" if others else " ".join(str(error).split())
        return f"{self.checkpoint.path} does not fit the networks of this run; {reason}"


def taken_over(config: TrainConfig, checkpoint: Checkpoint, given: Iterable[str]) -> TrainConfig:
    """Return the settings of another run as a new one has them; `given` are those that its user has named.

    What the other found out about its environment is left open, if that is another now; and a stranger does not choose
    where folders are made.
    """
    before, names = checkpoint.config, frozenset(given)
    usual: dict[str, Any] = {}
    if any(getattr(config, name) != getattr(before, name) for name in OF_THE_ENVIRONMENT):
        usual["rebuild_envs"] = "auto"
    if not checkpoint.signed:
        usual["output_dir"] = next(item.default for item in fields(TrainConfig) if item.name == "output_dir")
    return config.with_overrides(**{name: value for name, value in usual.items() if name not in names})


def beginning(agent: Agent, path: str | PathLike[str], config: TrainConfig) -> tuple[TrainConfig, Checkpoint]:
    """Return what a new run takes over of an agent that lies at `path`: its settings, and the checkpoint."""
    checkpoint = read_checkpoint(Path(path))
    return taken_over(config, checkpoint, agent.permission.given), checkpoint


def refuse_start(checkpoint: Checkpoint, config: TrainConfig, given: Iterable[str], *, trusted: bool) -> None:
    """Refuse what may not be imported of what the run of somebody else names; `given` are the user's own settings."""
    names, source = frozenset(given), checkpoint.path
    settings = config.algorithm
    permission = Permission(source, checkpoint.signed or trusted, names)
    needed = checkpoint.env_factory and "env_id" not in names
    refuse_missing_factory(source, config.env_id, needed=needed)
    refuse_foreign_module(source, config.env_id, signed=permission.granted, allowed="env_id" in names)
    arguments = () if "encoder_kwargs" in names else tuple(settings.encoder_kwargs)
    known = {"signed": checkpoint.signed, "trusted": trusted, "given": "encoder" in names}
    refuse_foreign_encoder(source, settings.encoder, arguments, **known)
    permission.refuse_schedules(config)
    permission.refuse_wrappers(config)
