"""The flags `--env-id` and `--env-factory`, of which a command takes one."""

from rl_training.core.errors import UserError
from rl_training.envs.factory import EnvFactory, import_factory

TWO_ENVIRONMENTS = "--env-id and --env-factory both name an environment; give one of them"


def chosen_env(env_id: str | None, env_factory: str | None) -> EnvFactory | str | None:
    """Return the environment that one of the two flags names; None if neither is given."""
    if env_factory is None:
        return env_id
    if env_id is not None:
        raise UserError(TWO_ENVIRONMENTS)
    return import_factory(env_factory)
