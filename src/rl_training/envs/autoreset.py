"""When a vector environment begins the next episode: in the step that ends one, or in the step after it."""

from typing import Any

from gymnasium.vector import AutoresetMode, VectorEnv

from rl_training.core.errors import UserError


def reads_same_step(env: VectorEnv[Any, Any, Any]) -> bool:
    """Tell whether an episode's end and the next reset are one step; refuse a vector that does not say."""
    declared = env.metadata.get("autoreset_mode")
    try:
        mode = declared if isinstance(declared, AutoresetMode) else AutoresetMode(declared)
    except ValueError:
        mode = None
    if mode is AutoresetMode.SAME_STEP:
        return True
    if mode is AutoresetMode.NEXT_STEP:
        return False
    raise UserError(
        f"{type(env).__name__} declares autoreset mode {declared!r} in its metadata; "
        "set metadata['autoreset_mode'] to gymnasium.vector.AutoresetMode.SAME_STEP or NEXT_STEP"
    )
