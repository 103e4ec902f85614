"""What is impossible in the settings of environments."""

from typing import Any

from rl_training.core.plain import PLAIN, is_plain, plain


def env_problems(config: Any) -> list[str]:
    """Return a sentence for each problem of a run's config, naming key, value and remedy."""
    found: list[str] = config.not_positive("env_timeout")
    if not config.env_id:
        found.append("env_id is empty; name a Gymnasium environment such as CartPole-v1")
    if not is_plain(plain(config.env_kwargs)):
        found.append(f"env_kwargs cannot be saved as they are; use {PLAIN}")
    if config.env_timeout > 10**8:
        found.append(
            f"env_timeout is {config.env_timeout:g}; use at most {10**8:,} seconds, which is three years"
        )
    if config.max_episode_steps is not None:
        found += config.not_positive("max_episode_steps")
        if "max_episode_steps" in config.env_kwargs:
            found.append(
                f"max_episode_steps is {config.max_episode_steps}, and env_kwargs has one, too; leave one of them out"
            )
    return found
