"""What is looked at before a run goes on: whose it is, what has changed around it, and what it had begun with."""

import warnings
from pathlib import Path

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.experiment.building import Given, own_build
from rl_training.experiment.checkpointing import Checkpoint, read_checkpoint
from rl_training.experiment.metadata import differences, surroundings
from rl_training.experiment.origin import Origin
from rl_training.experiment.trust import (
    Permission,
    refuse_foreign_encoder,
    refuse_foreign_module,
    refuse_missing_factory,
    refuse_other_env,
)


def refuse_strangers(
    source: Path, own: Checkpoint | Origin, env_id: str | None, given: Given, *, trusted: bool
) -> None:
    """Refuse an environment that is another than the run's own or not known here, and what may not be imported."""
    recorded, settings = own.config.env_id, own.config.algorithm
    refuse_other_env(source, recorded, env_id)
    refuse_missing_factory(source, recorded, needed=own.env_factory and given.factory is None)
    allowed = trusted or env_id is not None or given.factory is not None
    refuse_foreign_module(source, recorded, signed=own.signed, allowed=allowed)
    known = {"signed": own.signed, "trusted": trusted, "given": given.encoder is not None}
    refuse_foreign_encoder(source, settings.encoder, settings.encoder_kwargs, **known)
    permission = Permission(source, own.signed or trusted)
    permission.refuse_schedules(own.config)
    permission.refuse_wrappers(own.config)


def warn_of_differences(checkpoint: Checkpoint, config: TrainConfig) -> None:
    """Warn of everything around a run that is not as it was."""
    for difference in differences(checkpoint.facts["surroundings"], surroundings(config)):
        warnings.warn(f"{difference}: the run may not go on bit for bit as it would have", stacklevel=3)


def begun_with(origin: Origin, run_dir: Path, given: Given) -> Checkpoint | None:
    """Return the checkpoint that a run which has none of its own had begun with, if it had."""
    if origin.algorithm is not None and origin.algorithm != own_build(origin.config, given):
        name = origin.algorithm.rpartition(":")[2]
        raise UserError(
            f"{run_dir} was begun by {origin.algorithm}; go on with resume(path, algorithm={name})"
        )
    if origin.start_from is None:
        return None
    if not origin.signed:
        raise UserError(f"{run_dir} has no checkpoint and is not signed by you; start it again")
    return read_checkpoint(run_dir / origin.start_from)
