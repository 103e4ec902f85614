"""Start a new run with the weights and wrapper statistics of another.

Optimizer, counters, replay data and random streams are new. The weights are copied into the new run folder before the
folder gets its name, so the other run is not needed again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rl_training.algorithms.components import Parts
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.types import EnvSpec, Progress
from rl_training.envs.stepper import saved_statistics
from rl_training.envs.wrapper_statistics import Statistics
from rl_training.experiment.agent import check_spaces
from rl_training.experiment.checkpoints.format import Checkpoint, restoring, write_checkpoint
from rl_training.experiment.checkpoints.trust import (
    Permission,
    refuse_missing_factory,
    without_foreign_cluster,
)
from rl_training.runtime.sampler import saved_envs

FOLDER = "started_from"
"""Folder in a run that contains the copied weights, as an agent that can be loaded."""
OF_THE_NETWORK = ("normalize_obs", "normalize_reward", "preprocessing")
OF_THE_ENVIRONMENT = ("env_id", "env_kwargs", "env_wrappers", "max_episode_steps", "preprocessing")
STATISTICS = ("episodes", "statistics")


@dataclass(frozen=True)
class WarmStart:
    """The checkpoint whose weights a run starts with, and the record of it for the metadata."""

    checkpoint: Checkpoint
    record: dict[str, Any]

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> "WarmStart":
        """Return a warm start with its record."""
        record = {
            "path": str(checkpoint.path.resolve()),
            "timesteps": checkpoint.progress.clock,
            "config_fingerprint": checkpoint.config.fingerprint(),
            "sha256": checkpoint.sha256,
        }
        return cls(checkpoint, record)

    @property
    def notice(self) -> str:
        """The note to show before the run."""
        return (
            f"it starts with the weights of {self.record['path']}, trained for {self.record['timesteps']:,} "
            f"{self.checkpoint.progress.unit}; its optimizer, counters and random streams are new"
        )

    @property
    def statistics(self) -> list[Statistics]:
        """The running statistics of wrappers, one entry per environment."""
        return [each for envs in saved_envs(self.checkpoint.state) for each in saved_statistics(envs)]

    def load_into(self, config: TrainConfig, parts: Parts, spec: EnvSpec) -> None:
        """Load the weights into the networks; raise if they do not fit or the statistics are damaged."""
        source, state = self.checkpoint.path, self.checkpoint.state
        check_spaces(f"checkpoint {source}", config, spec, self.checkpoint.spec, for_critic=True)
        with restoring(source):
            try:
                parts.learner.load_learned(state)
            except (RuntimeError, KeyError) as error:
                raise UserError(self._mismatch(config, error)) from error
            _ = self.statistics

    def write(self, folder: Path, config: TrainConfig, parts: Parts, facts: dict[str, Any]) -> None:
        """Copy the weights and statistics into a run folder."""
        groups = {
            str(group): {"envs": {name: envs[name] for name in STATISTICS if "statistics" in envs}}
            for group, envs in enumerate(saved_envs(self.checkpoint.state))
        }
        sampler = groups["0"] if len(groups) == 1 else {"groups": groups}
        state = parts.learner.learned_state() | {"sampler": sampler}
        write_checkpoint(folder / FOLDER, config=config, progress=Progress(), state=state, facts=facts)

    def _mismatch(self, config: TrainConfig, error: Exception) -> str:
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


def inherited_config(config: TrainConfig, checkpoint: Checkpoint, given: Iterable[str]) -> TrainConfig:
    """Return the config of a new run that was copied from a checkpoint; `given` are the settings that the user named.

    Settings that were detected for another environment are detected again. An untrusted checkpoint chooses neither the
    output folder nor the tracker nor a Ray cluster.
    """
    before, names = checkpoint.config, frozenset(given)
    reset: dict[str, Any] = {}
    if any(getattr(config, name) != getattr(before, name) for name in OF_THE_ENVIRONMENT):
        reset["rebuild_envs"] = "auto"
    if not checkpoint.signed:
        reset["output_dir"] = next(item.default for item in fields(TrainConfig) if item.name == "output_dir")
    if not checkpoint.trusted:
        reset["track"] = "none"
        config = without_foreign_cluster(config, names)
    return config.with_overrides(**{name: value for name, value in reset.items() if name not in names})


def check_trust(checkpoint: Checkpoint, config: TrainConfig, given: Iterable[str], *, trusted: bool) -> None:
    """Raise if a new run would run untrusted code of a checkpoint; `given` are the settings that the user named."""
    permission = Permission(checkpoint.path, checkpoint.signed or trusted, frozenset(given))
    needed = checkpoint.env_factory and "env_id" not in permission.given
    refuse_missing_factory(checkpoint.path, config.env_id, needed=needed)
    permission.refuse_all(config)
