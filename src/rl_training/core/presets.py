"""Config files by path, and presets by name from anywhere."""

from os import PathLike
from pathlib import Path

from rl_training.core.errors import UserError, did_you_mean


def find_config(path: str | PathLike[str]) -> Path:
    """Return the file at `path`, or the preset of that name, such as `configs/ppo/cartpole.yaml` or `ppo/cartpole`."""
    given = Path(path)
    if given.is_file():
        return given
    name = given.as_posix().removeprefix("configs/").removesuffix(".yaml")
    known = presets()
    if name in known:
        return known[name]
    kind = "is a folder, not a config file" if given.is_dir() else "does not exist"
    raise UserError(f"config {path} {kind}{did_you_mean(name, known)}")


def presets() -> dict[str, Path]:
    """Return all presets by name, such as `ppo/cartpole`."""
    return {
        preset.relative_to(folder).with_suffix("").as_posix(): preset
        for folder in _preset_folders()
        for preset in sorted(folder.rglob("*.yaml"))
    }


def _preset_folders() -> list[Path]:
    package = Path(__file__).resolve().parents[1]
    return [folder for folder in (package / "configs", package.parents[1] / "configs") if folder.is_dir()]
