"""`rl-training resume`: continue a run from its last checkpoint."""

from dataclasses import dataclass, fields
from typing import Annotated, Any

from rl_training.algorithms import ALGORITHMS
from rl_training.cli.arguments import Option, parse, setting_name
from rl_training.cli.train import print_diagnosis, print_result, resumed_with
from rl_training.config import TrainConfig
from rl_training.config.fields import CheckedConfig
from rl_training.config.train_config import OF_THE_MACHINE
from rl_training.core.errors import UserError
from rl_training.core.foreign_names import here_called
from rl_training.envs.factory import import_factory
from rl_training.experiment.console import make_console
from rl_training.experiment.resume import resume


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Continue a run from its last checkpoint, exactly as if it had not been interrupted.

    Only its length, and the processes and machines that it uses, can be changed. To change other settings, fine-tune
    from its weights in a new run:
    rl-training train --start-from RUN --learning-rate 1e-4
    """

    run: Annotated[str, Option(positional=True, metavar="RUN")]
    """A run folder, or a checkpoint of one."""
    total_timesteps: int | None = None
    """New budget; extends a finished run and stretches its schedules."""
    total_updates: int | None = None
    """The same for a run that learns from a dataset alone."""
    max_time: float | None = None
    """Pause again after this many seconds."""
    quiet: bool = False
    """Print only the run folder."""
    env_id: str | None = None
    """The run's environment, if someone else trained the run and you trust the module that it names."""
    env_factory: str | None = None
    """Function that builds the run's environment, as module:function, if one was used."""
    engine: str | None = None
    """Where groups and shards are computed: local, process, ray or auto. The results are the same."""
    num_samplers: str | None = None
    """Processes that host the groups: a number, or auto."""
    num_learners: str | None = None
    """Processes that compute the shards: a number, or auto."""
    max_sampler_restarts: int | None = None
    """How often processes that collect may be replaced."""
    ray_address: str | None = None
    """Address of an existing Ray cluster, HOST:PORT or auto."""
    ray_resources: dict[str, Any] | None = None
    """Resources that each process reserves on the Ray cluster, as a YAML map such as {CPU: 1}."""
    ray_placement: str | None = None
    """Whether processes are spread over the nodes of the Ray cluster, or packed onto few: spread or pack."""
    trust_modules: bool = False
    """Import the modules that someone else's run names for algorithm, environment, wrappers, encoder and schedules."""


def run(argv: list[str]) -> int:
    """Parse the flags and resume."""
    _refuse_settings(argv)
    flags = parse(Resume, argv, "rl-training resume")
    with resumed_with(flags.env_factory) as again:
        result = resume(
            flags.run,
            factory=import_factory(flags.env_factory) if flags.env_factory is not None else None,
            total_timesteps=flags.total_timesteps,
            total_updates=flags.total_updates,
            max_time=flags.max_time,
            console=make_console(flags.quiet),
            arguments=["rl-training", "resume", *argv],
            env_id=flags.env_id,
            trust_modules=flags.trust_modules,
            settings={
                name: value for name in OF_THE_MACHINE if (value := getattr(flags, name, None)) is not None
            },
        )
    if flags.quiet:
        print(result.run_dir)
    else:
        print_result(result, again)
        print_diagnosis(result)
    return 0


def _refuse_settings(argv: list[str]) -> None:
    """Raise an error for flags that are settings of a run, with what can be changed and how."""
    classes: list[type[CheckedConfig]] = [TrainConfig, *(face.config_class for face in ALGORITHMS.values())]
    settings = {item.name for config_class in classes for item in fields(config_class)}  # type: ignore[arg-type]  # all are dataclasses
    for flag in [word.partition("=")[0] for word in argv if word.startswith("--")]:
        name = setting_name(flag)
        name = here_called(name) or name
        if name in settings - {item.name for item in fields(Resume)}:
            raise UserError(
                f"resume continues a run with its own settings, so {flag} cannot be changed; only "
                f"--total-timesteps, --total-updates, --max-time, {', '.join(_flag(name) for name in OF_THE_MACHINE)} "
                "can; to change other settings, fine-tune from its weights: "
                f"rl-training train --start-from RUN {_flag(name)} ..."
            )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
