"""Image preprocessing in the environment: grayscale, resizing and frame stacking."""

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces

from rl_training.config.preprocessing import USUAL_FRAMES, Frames
from rl_training.core.errors import UserError
from rl_training.core.spaces.images import Channels, channel_axis, is_image
from rl_training.core.types import Array, Info

GRAY = np.array([0.299, 0.587, 0.114])
"""OpenCV's weights of red, green and blue."""
RESIZED_DIRECTLY = (np.uint8, np.uint16, np.float32, np.float64)
"""Types that OpenCV can resize; others are converted to float64."""
CHANNELS_AT_ONCE = 4
"""Most channels that OpenCV resizes in one call."""


def opencv(preprocessing: str, extra: str) -> Any:
    """Return the module cv2, which only preprocessing needs."""
    try:
        return importlib.import_module("cv2")
    except ImportError as error:
        raise UserError(
            f"preprocessing is '{preprocessing}', which needs OpenCV; pip install 'rl-training[{extra}]'"
        ) from error


class FrameStack:
    """The last frames as one array [K * C, H, W], oldest first; after a reset the first frame is repeated.

    Every observation is a new array.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self._frames: Array

    def restart(self, frame: Array) -> Array:
        """Fill the stack with `frame` [C, H, W]."""
        self._frames = np.concatenate((frame,) * self.length)
        return self._frames

    def push(self, frame: Array) -> Array:
        """Add the newest frame [C, H, W] and drop the oldest."""
        self._frames = np.concatenate((self._frames[len(frame) :], frame))
        return self._frames


class ImagePipeline:
    """Preprocesses one image of an observation: [H, W], [H, W, C] or [C, H, W] in, a frame or a stack out.

    The output has channels first, [K * C, H, W]; a single grayscale frame is [H, W]. The dtype does not change: a
    bool is true if at least half of its area was.
    """

    def __init__(self, space: spaces.Box, frames: Frames, channels: Channels, key: str) -> None:
        self.axis = channel_axis(space.shape, channels, key)
        count = 1 if self.axis is None else space.shape[self.axis]
        self.to_gray = frames.grayscale and self.axis is not None
        if self.to_gray and count not in (1, 3):
            name = f" '{key}'" if key else ""
            raise UserError(
                f"grayscale is true, but the image{name} has {count} channels instead of 1 or 3 (red, green, blue); "
                "leave grayscale out"
            )
        self.size = frames.image_size
        self.dtype = np.dtype(space.dtype)
        self.cv2 = opencv("image", "images") if self.size is not None or self.to_gray else None
        self.stack = FrameStack(frames.stack) if frames.stack > 1 else None
        shown = self.restart(np.zeros(space.shape, self.dtype))
        asked = frames != USUAL_FRAMES["none"]
        self.changes = asked and (shown.shape != space.shape or self.size is not None or self.axis == 2)
        self.space = _same_bounds(space, shown.shape) if self.changes else space

    def restart(self, image: Any) -> Array:
        """Return the first observation of an episode."""
        frame = self._frame(np.asarray(image))
        return frame if self.stack is None else self.stack.restart(frame if frame.ndim == 3 else frame[None])

    def push(self, image: Any) -> Array:
        """Return the observation after a new image."""
        frame = self._frame(np.asarray(image))
        return frame if self.stack is None else self.stack.push(frame if frame.ndim == 3 else frame[None])

    def _frame(self, image: Array) -> Array:
        """Return one image as [C, H, W] or [H, W], converted to grayscale and resized if configured."""
        if self.axis == 0:
            image = np.moveaxis(image, 0, 2)
        if self.to_gray:
            image = self._gray(image)
        if self.size is not None:
            image = self._resized(image)
        return channels_first(image, 2) if image.ndim == 3 else image

    def _gray(self, image: Array) -> Array:
        """Return an image [H, W, C] with one or three channels as [H, W]."""
        if image.shape[2] == 1:
            return image[:, :, 0]
        if self.dtype in (np.uint8, np.uint16, np.float32):
            assert self.cv2 is not None
            gray: Array = self.cv2.cvtColor(np.ascontiguousarray(image), self.cv2.COLOR_RGB2GRAY)
            return gray
        return self._as_before(image @ GRAY)

    def _resized(self, image: Array) -> Array:
        """Resize [H, W] or [H, W, C] by averaging over areas."""
        assert self.cv2 is not None
        if image.ndim == 3 and image.shape[2] > CHANNELS_AT_ONCE:
            parts = np.split(image, range(CHANNELS_AT_ONCE, image.shape[2], CHANNELS_AT_ONCE), axis=2)
            return np.concatenate([self._resized(part) for part in parts], axis=2)
        direct = image.dtype in RESIZED_DIRECTLY
        source = np.ascontiguousarray(image if direct else image.astype(np.float64))
        small = self.cv2.resize(source, (self.size, self.size), interpolation=self.cv2.INTER_AREA)
        # OpenCV drops an axis of one channel
        small = small.reshape(self.size, self.size, *image.shape[2:])
        return small if direct else self._as_before(small)

    def _as_before(self, numbers: Array) -> Array:
        """Return floats in the dtype of the image."""
        if self.dtype == np.bool_:
            return numbers >= 0.5
        return (np.rint(numbers) if np.issubdtype(self.dtype, np.integer) else numbers).astype(self.dtype)


def channels_first(frame: Array, axis: int | None) -> Array:
    """Return a frame with channels on `axis` as a contiguous array [C, H, W]."""
    return frame[None] if axis is None else np.ascontiguousarray(np.moveaxis(frame, axis, 0))


def _same_bounds(source: spaces.Box, shape: tuple[int, ...]) -> spaces.Box:
    """Return a Box of another shape with the widest bounds of the source."""
    low, high = (np.full(shape, bound, source.dtype) for bound in (source.low.min(), source.high.max()))
    return spaces.Box(low, high, dtype=source.dtype.type)


class ObservationImages:
    """Preprocesses every image of an observation, also inside Dict and Tuple; other entries are not changed."""

    def __init__(self, space: Space[Any], frames: Frames, channels: Channels = "auto") -> None:
        self._channels = channels
        self._leaves: dict[str, ImagePipeline] = {}
        self.space = self._transformed(space, frames, "")
        if not self._leaves:
            raise UserError(
                f"preprocessing is 'image', but observations {space} have no image, a Box of rank 2 or "
                "3 (in a Dict with 3 pixels a side or more, of rank 2 with 7); leave preprocessing out"
            )

    def restart(self, obs: Any) -> Any:
        """Return the first observation of an episode: a frame stack is filled with the first frame."""
        return self._mapped(obs, "", ImagePipeline.restart)

    def push(self, obs: Any) -> Any:
        """Return the observation after a new one."""
        return self._mapped(obs, "", ImagePipeline.push)

    def _transformed(self, space: Space[Any], frames: Frames, key: str) -> Space[Any]:
        """Return the space after preprocessing, and register the pipeline of each image."""
        if isinstance(space, spaces.Dict):
            entries = space.spaces.items()
            return spaces.Dict({n: self._transformed(part, frames, f"{key}/{n}") for n, part in entries})
        if isinstance(space, spaces.Tuple):
            parts = enumerate(space.spaces)
            return spaces.Tuple(self._transformed(part, frames, f"{key}/{n}") for n, part in parts)
        if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3):
            return space
        # a plain observation is an image by the setting; an entry of several must look like one
        if key and not is_image(space, self._channels, key[1:]):
            return space
        leaf = self._leaves[key] = ImagePipeline(space, frames, self._channels, key[1:])
        return leaf.space

    def _mapped(self, obs: Any, key: str, change: Callable[[ImagePipeline, Any], Array]) -> Any:
        if key in self._leaves:
            leaf = self._leaves[key]
            return change(leaf, obs) if leaf.changes else obs
        if isinstance(obs, dict):
            return {name: self._mapped(part, f"{key}/{name}", change) for name, part in obs.items()}
        if isinstance(obs, tuple):
            return tuple(self._mapped(part, f"{key}/{number}", change) for number, part in enumerate(obs))
        return obs


class ImagePreprocessing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Preprocesses the images of an environment's observations."""

    def __init__(self, env: gymnasium.Env[Any, Any], frames: Frames, channels: Channels = "auto") -> None:
        super().__init__(env)
        self._images = ObservationImages(env.observation_space, frames, channels)
        self.observation_space = self._images.space

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Reset; a frame stack is filled with the first frame."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._images.restart(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._images.push(obs), reward, terminated, truncated, info
