"""Images of every type, size and order of axes, alone and inside Dict observations."""

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import Space, spaces
from records import CountingEnv

from rl_training.config import TrainConfig
from rl_training.config.preprocessing import Frames
from rl_training.core.errors import UserError
from rl_training.core.spaces.images import channel_axis
from rl_training.envs import make_env
from rl_training.envs.preprocessing.images import ImagePreprocessing


class Slides(gymnasium.Env[Any, Any]):
    """Shows one observation after the other, and the first again after a reset."""

    def __init__(self, space: Space[Any], slides: list[Any]) -> None:
        self.observation_space, self.slides = space, slides
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.number = 0
        return self.slides[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.number += 1
        return self.slides[self.number], 1.0, False, False, {}


def wrapped(
    space: Space[Any], slides: list[Any], *, size: int | None = None, gray: bool = False, stack: int = 1
) -> ImagePreprocessing:
    return ImagePreprocessing(Slides(space, slides), Frames(image_size=size, grayscale=gray, stack=stack))


def images(space: spaces.Box, count: int = 3) -> list[Any]:
    space.seed(0)
    return [space.sample() for _ in range(count)]


def byte_box(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((3, 9, 9), 0), ((9, 9, 3), 2), ((2, 2, 2), 2), ((9, 9), None), ((2, 9, 2), 2), ((210, 160, 3), 2)],
)
def test_channels_are_on_the_smaller_of_the_outer_axes(shape: tuple[int, ...], axis: int | None) -> None:
    assert channel_axis(shape) == axis


@pytest.mark.parametrize(
    ("shape", "stacked"),
    [((5, 6), (3, 5, 6)), ((5, 6, 2), (6, 5, 6)), ((2, 5, 6), (6, 5, 6)), ((5, 6, 1), (3, 5, 6))],
)
def test_a_stack_is_channel_first_oldest_first_and_begins_with_the_first_frame_repeated(
    shape: tuple[int, ...], stacked: tuple[int, ...]
) -> None:
    space = byte_box(*shape)
    slides = images(space, 5)
    first = [
        np.moveaxis(slide, channel_axis(shape), 0) if len(shape) == 3 else slide[None] for slide in slides
    ]  # type: ignore[arg-type]
    env = wrapped(space, slides, stack=3)
    seen = [env.reset()[0], *(env.step(0)[0] for _ in range(3))]
    assert env.observation_space == byte_box(*stacked)
    expected = [(0, 0, 0), (0, 0, 1), (0, 1, 2), (1, 2, 3)]
    for obs, numbers in zip(seen, expected, strict=True):
        assert np.array_equal(obs, np.concatenate([first[number] for number in numbers]))
        assert obs.flags.c_contiguous
    assert np.array_equal(env.reset()[0], np.concatenate([first[0]] * 3)), (
        "nothing of the episode before is left"
    )


def test_a_stack_does_not_follow_an_environment_that_draws_into_the_same_array() -> None:
    canvas = np.zeros((4, 4), np.uint8)
    env = wrapped(byte_box(4, 4), [canvas] * 3, stack=2)
    seen = [env.reset()[0]]
    for value in (1, 2):
        canvas[:] = value
        seen.append(env.step(0)[0])
    assert [obs[:, 0, 0].tolist() for obs in seen] == [[0, 0], [0, 1], [1, 2]]


def test_bounds_and_type_follow_the_source() -> None:
    space = spaces.Box(-2.0, 10.0, (4, 4, 2), np.float64)
    env = wrapped(space, images(space), stack=2)
    assert env.observation_space == spaces.Box(-2.0, 10.0, (4, 4, 4), np.float64)
    assert env.reset()[0].dtype == np.float64


def test_nothing_to_do_changes_nothing() -> None:
    low = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    space = spaces.Box(low, np.full_like(low, 255), dtype=np.uint8)
    slides = images(space)
    env = wrapped(space, slides)
    assert env.observation_space == space
    assert env.reset()[0] is slides[0]


def test_images_inside_containers_are_transformed_and_the_rest_passes() -> None:
    space = spaces.Dict(
        {
            "camera": byte_box(7, 8, 2),
            "joints": byte_box(5, 6),
            "speed": spaces.Box(-1.0, 1.0, (2,), np.float32),
            "inner": spaces.Dict({"map": byte_box(9, 9)}),
            "pair": spaces.Tuple((spaces.Discrete(3), byte_box(2, 8, 8))),
        }
    )
    space.seed(1)
    slides = [space.sample() for _ in range(2)]
    env = wrapped(space, slides, stack=2)
    env.reset()
    obs = env.step(0)[0]
    assert env.observation_space.contains(obs)
    assert obs["camera"].shape == (4, 7, 8)
    assert np.array_equal(obs["joints"], slides[1]["joints"])
    assert np.array_equal(obs["inner"]["map"], np.stack([slide["inner"]["map"] for slide in slides]))
    assert np.array_equal(obs["pair"][1], np.concatenate([slide["pair"][1] for slide in slides]))
    assert np.array_equal(obs["speed"], slides[1]["speed"])
    assert obs["pair"][0] == slides[1]["pair"][0]


def test_observations_without_an_image_are_refused() -> None:
    with pytest.raises(UserError, match=r"preprocessing is 'image', but .* have no image"):
        wrapped(spaces.Dict({"speed": spaces.Box(-1.0, 1.0, (2,))}), [])


def test_shades_of_gray_need_one_channel_or_three() -> None:
    pytest.importorskip("cv2")
    space = spaces.Dict({"camera": byte_box(9, 9, 4)})
    with pytest.raises(UserError, match=r"the image 'camera' has 4 channels"):
        wrapped(space, [], gray=True)


def test_a_missing_opencv_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(UserError, match=r"needs OpenCV; pip install 'rl-training\[images\]'"):
        wrapped(byte_box(9, 9), [], size=4)
    wrapped(byte_box(9, 9), [np.zeros((9, 9), np.uint8)], stack=2).reset()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("axis", [0, 2])
def test_gray_is_opencv_s_in_every_type_and_order(dtype: Any, axis: int) -> None:
    cv2 = pytest.importorskip("cv2")
    space = spaces.Box(0, 255, (5, 6, 3), dtype)
    slides = images(space)
    shown = [np.moveaxis(slide, 2, axis) for slide in slides]
    source = spaces.Box(0, 255, shown[0].shape, dtype)
    env = wrapped(source, shown, gray=True)
    obs, _ = env.reset()
    assert env.observation_space == spaces.Box(0, 255, (5, 6), dtype)
    assert obs.dtype == dtype
    if dtype is np.float64:
        expected = slides[0] @ np.array([0.299, 0.587, 0.114])
    else:
        expected = cv2.cvtColor(slides[0], cv2.COLOR_RGB2GRAY)
    assert np.allclose(obs, expected, atol=0 if np.issubdtype(dtype, np.integer) else 1e-4)
    assert wrapped(source, shown, gray=True, stack=4).observation_space.shape == (4, 5, 6)


def test_one_channel_is_gray_already() -> None:
    pytest.importorskip("cv2")
    space = byte_box(1, 5, 6)
    slides = images(space)
    assert np.array_equal(wrapped(space, slides, gray=True).reset()[0], slides[0][0])


@pytest.mark.parametrize(
    ("shape", "resized"),
    [((8, 12), (4, 4)), ((8, 12, 3), (3, 4, 4)), ((3, 8, 12), (3, 4, 4)), ((8, 12, 1), (1, 4, 4)),
     ((8, 12, 7), (7, 4, 4)), ((1, 8, 12), (1, 4, 4))],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64, np.float16, np.float32, np.float64])
def test_a_pixel_becomes_the_mean_of_its_area(shape: Any, resized: Any, dtype: Any) -> None:
    pytest.importorskip("cv2")
    space = spaces.Box(0, 100, shape, dtype)
    slide = images(space)[0]
    env = wrapped(space, [slide], size=4)
    obs, _ = env.reset()
    assert env.observation_space == spaces.Box(0, 100, resized, dtype)
    assert (obs.shape, obs.dtype) == (resized, dtype)
    axis = channel_axis(shape)
    planes = slide[None] if axis is None else np.moveaxis(slide, axis, 0)
    means = planes.astype(np.float64).reshape(len(planes), 4, 2, 4, 3).mean(axis=(2, 4))
    found = obs[None] if axis is None else obs
    tolerance = 0.51 if np.issubdtype(dtype, np.integer) else 0.1
    assert np.allclose(found.astype(np.float64), means, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.bool_, np.int16])
@pytest.mark.parametrize("channels_last", [True, False])
def test_many_channels_shrink_by_any_factor_each_as_it_would_alone(channels_last: bool, dtype: Any) -> None:
    """OpenCV refuses more than four at once unless the factor is whole."""
    pytest.importorskip("cv2")
    planes = np.random.default_rng(0).integers(0, 2, (9, 11, 10)).astype(dtype)
    slide = np.moveaxis(planes, 0, 2) if channels_last else planes
    space = spaces.Box(0, 1, slide.shape, dtype)
    obs, _ = wrapped(space, [slide], size=7).reset()
    for shown, plane in zip(obs, planes, strict=True):
        alone, _ = wrapped(spaces.Box(0, 1, plane.shape, dtype), [plane], size=7).reset()
        assert np.array_equal(shown, alone)


def test_nothing_to_do_leaves_an_image_as_it_is() -> None:
    space = byte_box(9, 9, 3)
    env = wrapped(space, images(space))
    assert env.observation_space is space
    assert np.array_equal(env.reset()[0], images(space)[0])


def test_a_bool_is_true_where_half_of_its_area_is() -> None:
    """The planes of MinAtar are bool, and there may be more of them than colours."""
    pytest.importorskip("cv2")
    space = spaces.Box(0, 1, (8, 8, 6), np.bool_)
    slide = np.zeros((8, 8, 6), np.bool_)
    slide[0, 0, 5] = slide[0, 1, 5] = True
    slide[2, 2, 5] = True
    env = wrapped(space, [slide], size=4, stack=2)
    obs, _ = env.reset()
    assert env.observation_space == spaces.Box(0, 1, (12, 4, 4), np.bool_)
    assert obs.dtype == np.bool_
    assert np.argwhere(obs).tolist() == [[5, 0, 0], [11, 0, 0]]


def test_all_at_once_gray_before_size_before_stack() -> None:
    cv2 = pytest.importorskip("cv2")
    space = byte_box(3, 30, 20)
    slides = images(space)
    env = wrapped(space, slides, size=7, gray=True, stack=2)
    env.reset()
    obs = env.step(0)[0]
    grays = [cv2.cvtColor(np.ascontiguousarray(np.moveaxis(s, 0, 2)), cv2.COLOR_RGB2GRAY) for s in slides[:2]]
    expected = [cv2.resize(gray, (7, 7), interpolation=cv2.INTER_AREA) for gray in grays]
    assert np.array_equal(obs, np.stack(expected))


def test_the_setting_wraps_registered_environments_and_those_of_a_factory() -> None:
    config = TrainConfig(algo="ppo", env_id="Any-v0", preprocessing="image", frame_stack=2)
    space = byte_box(4, 4)
    env = make_env(config, 0, factory=lambda: Slides(space, images(space)))()
    assert env.observation_space.shape == (2, 4, 4)
    env.reset()
    assert env.step(0)[0].shape == (2, 4, 4)
    with pytest.raises(UserError, match="have no image"):
        make_env(config.with_overrides(env_id="CartPole-v1"), 0)()
    with pytest.raises(UserError, match="have no image"):
        make_env(config, 0, factory=CountingEnv)()
