"""`rl-training check-env`: check an environment before training."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from rl_training.cli.arguments import Option, parse
from rl_training.cli.env_flags import chosen_env
from rl_training.config.env_wrappers import Wrappers
from rl_training.config.policies import SHARED, Policies
from rl_training.core.errors import UserError, printable
from rl_training.experiment.environment_check import check_env


@dataclass(frozen=True, kw_only=True)
class CheckEnv:
    """Check an environment before training: play a few random episodes and report every problem. Writes no files."""

    env_id: Annotated[str | None, Option(positional=True, metavar="ID")] = None
    """Gymnasium id; `module:Id` imports the module first."""
    env_factory: str | None = None
    """Function that builds the environment, as module:function."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for its constructor, as a YAML map."""
    env_wrappers: Wrappers = ()
    """Wrappers around it, innermost first: module:Wrapper, or {module:Wrapper: {argument: value}}."""
    max_episode_steps: int | None = None
    """Steps after which an episode is truncated, instead of its own time limit."""
    critic_obs: tuple[str, ...] = ()
    """Entries of its observations that only the critic reads."""
    policies: Policies = SHARED
    """Who plays a game with several agents: `shared`, `each`, or a map from policies to lists of agents."""
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
        flags.env_kwargs,
        flags.seed,
        env_wrappers=flags.env_wrappers,
        max_episode_steps=flags.max_episode_steps,
        critic_obs=flags.critic_obs,
        policies=flags.policies,
    )
    print(printable(report))
    return 0 if report.ok else 2
