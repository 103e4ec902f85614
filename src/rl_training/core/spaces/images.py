"""Which observations are images, and which axis has the channels: one rule for environments and networks."""

from typing import Any, Literal, TypeAlias

from gymnasium import Space, spaces

from rl_training.core.errors import UserError

Channels: TypeAlias = Literal["auto", "first", "last"]
SMALLEST_IMAGE = 3
"""A Box of rank 3 with a shorter side is not treated as an image."""
SMALLEST_PLANE = 7
"""The same for rank 2, which may also be a few vectors."""


def is_image(space: Space[Any], channels: Channels = "auto", key: str = "") -> bool:
    """Return whether a space holds images: a Box of rank 3, or of rank 2 with one channel, and not too small.

    >>> is_image(spaces.Box(0, 1, (5, 5, 4))), is_image(spaces.Box(0, 1, (10, 10))), is_image(spaces.Box(0, 1, (5, 5)))
    (True, True, False)
    """
    if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3) or 0 in space.shape:
        return False
    smallest = SMALLEST_IMAGE if len(space.shape) == 3 else SMALLEST_PLANE
    return min(height_and_width(space.shape, channels, key)) >= smallest


def height_and_width(shape: tuple[int, ...], channels: Channels, key: str = "") -> tuple[int, int]:
    """Return the two sides of an image."""
    axis = channel_axis(shape, channels, key)
    first = 1 if axis == 0 else 0
    return int(shape[first]), int(shape[first + 1])


def channel_axis(shape: tuple[int, ...], channels: Channels = "auto", key: str = "") -> int | None:
    """Return the axis of an image's channels: 0, 2, or None for rank 2.

    `auto` chooses the smaller of the first and the last axis; equal ones raise an error, unless the image is too small.

    >>> channel_axis((3, 84, 84)), channel_axis((84, 84, 3)), channel_axis((84, 84))
    (0, 2, None)
    """
    if len(shape) == 2:
        return None
    if channels != "auto":
        return 0 if channels == "first" else 2
    if shape[0] == shape[2] and min(shape) >= SMALLEST_IMAGE:
        where = f" (entry '{key}')" if key else ""
        raise UserError(
            f"image observations {tuple(shape)}{where} may have their channels first or last; set "
            "image_channels"
        )
    return 0 if shape[0] < shape[2] else 2
