"""The settings of each kind of `preprocessing`, their defaults and checks."""

from dataclasses import dataclass, fields

from rl_training.config.fields import CheckedConfig

IMAGE_SETTINGS = ("image_size", "grayscale", "frame_stack")
ATARI_SETTINGS = (
    "noop_max", "frame_skip", "max_pool", "terminal_on_life_loss", "fire_reset", "clip_reward",
)  # fmt: skip
SETTINGS_OF: dict[str, tuple[str, ...]] = {
    "none": (),
    "image": IMAGE_SETTINGS,
    "atari": (*IMAGE_SETTINGS, *ATARI_SETTINGS),
}
"""Which settings each kind of preprocessing uses."""
LIMITS = {"image_size": (1, 2048), "frame_stack": (1, 64), "noop_max": (0, 10_000), "frame_skip": (1, 64)}


@dataclass(frozen=True)
class Frames:
    """How frames of the environment become observations, with all defaults resolved."""

    image_size: int | None
    """Height and width in pixels; None leaves them unchanged."""
    grayscale: bool
    stack: int
    """Number of frames in one observation, oldest first."""


USUAL_FRAMES = {
    "none": Frames(image_size=None, grayscale=False, stack=1),
    "image": Frames(image_size=None, grayscale=False, stack=1),
    "atari": Frames(image_size=84, grayscale=True, stack=4),
}
"""Defaults of the image settings."""


def preprocessing_problems(config: CheckedConfig) -> list[str]:
    """Return one message per setting that is out of range, or that the chosen preprocessing does not use."""
    usual = {item.name: item.default for item in fields(config)}  # type: ignore[arg-type]  # always mixed into a dataclass
    values = {name: getattr(config, name) for name in SETTINGS_OF["atari"]}
    chosen = {name: value for name, value in values.items() if value != usual[name]}
    kind: str = config.preprocessing  # type: ignore[attr-defined]  # the run's config has it
    problems = []
    for name, value in chosen.items():
        if name not in SETTINGS_OF[kind]:
            users = [user for user, names in SETTINGS_OF.items() if name in names]
            problems.append(
                f"{name} is {value}, but preprocessing '{kind}' does not use it; leave it out, or set preprocessing "
                f"to {' or '.join(users)}"
            )
    for name, (low, high) in LIMITS.items():
        if name in chosen:
            problems += config.outside(name, low, high)
    return problems
