"""`rl-training check-env`: what a run would find out about an environment."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from rl_training.cli.flags import chosen_env, yaml_map
from rl_training.cli.parsing import parse
from rl_training.core.errors import UserError, printable
from rl_training.experiment.environment_check import check_env


@dataclass
class CheckEnv:
    """Play a few episodes by chance in an environment; tell what is wrong with it, and what to know. Writes nothing."""

    env_id: Annotated[str | None, tyro.conf.Positional] = None
    """Gymnasium id; `module:Id` imports the module first."""
    env_factory: str | None = None
    """Function that builds the environment, as module:function."""
    env_kwargs: str = "{}"
    """Arguments for its constructor, as a YAML map."""
    env_wrappers: tuple[str, ...] = ()
    """Wrappers around it, innermost first: module:Wrapper, or {module:Wrapper: {argument: value}}."""
    max_episode_steps: int | None = None
    """Steps after which an episode is truncated, in the place of its own time limit."""
    seed: int = 0
    """Seed of its episodes."""


def run(argv: list[str]) -> int:
    """Check and print; 2 if there are problems."""
    flags = parse(CheckEnv, argv, "rl-training check-env")
    env = chosen_env(flags.env_id, flags.env_factory)
    if env is None:
        raise UserError(
            "check-env needs an environment: rl-training check-env CartPole-v1, or --env-factory module:function"
        )
    report = check_env(
        env,
        yaml_map("env_kwargs", flags.env_kwargs, "gravity: 9.8"),
        flags.seed,
        env_wrappers=flags.env_wrappers,
        max_episode_steps=flags.max_episode_steps,
    )
    print(printable(report))
    return 0 if report.ok else 2
