"""Config files by path, and presets by name.

A preset is a file in `configs/`, grouped by algorithm. The folder `zoo/` has the same files, grouped by family of
environments: as links in a checkout, as copies in a wheel.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

import yaml

from rl_training.core.errors import ConfigError, UserError, did_you_mean

BENCHMARK = "benchmark"
"""The name of a family's manifest, which is not a preset."""
SHORT = "short"
"""The name of a family's second manifest, if there is one: a short benchmark for a single core."""
NEAR = 0.7
"""How similar a name must be to a preset's to be suggested, from 0 to 1."""
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class About:
    """The description of a preset: family, source of its settings, and scores."""

    family: str = ""
    """The group of environments it is listed under."""
    summary: str = ""
    """One line about it."""
    source: str = ""
    """Where its settings come from."""
    expected: str = NOT_MEASURED
    """The scores that were measured, and on which seeds."""
    needs: str = ""
    """What must be installed in addition to the package."""


@dataclass(frozen=True)
class Preset:
    """A preset as listed: read from plain YAML, without its algorithm."""

    name: str
    path: Path
    algo: str
    env_id: str
    env_kwargs: Mapping[str, Any]
    budget: int
    """Steps, or updates if it learns from a dataset alone."""
    about: About
    dataset: str = ""
    unit: str = "steps"

    @property
    def task(self) -> str:
        """The environment's name, see `task_name`, or the dataset's if it names no environment."""
        return task_name(self.env_id, self.env_kwargs) if self.env_id else dataset_name(self.dataset)


def dataset_name(dataset: str) -> str:
    """Return the last part of a dataset's path or id."""
    return dataset.rstrip("/").rpartition("/")[2]


def task_name(env_id: str, env_kwargs: Mapping[str, Any]) -> str:
    """Return a short name of an environment: its id without the module, and its arguments.

    >>> task_name("my.games:mine/Grid-v0", {"game": "maze"})
    'mine/Grid-v0 (game maze)'
    """
    of_module = ":" in env_id and "://" not in env_id  # pettingzoo://family/name is a whole name
    name = env_id.rpartition(":")[2].removeprefix("rl_training/") if of_module else env_id
    given = ", ".join(f"{key} {value}" for key, value in env_kwargs.items())
    return f"{name} ({given})" if given else name


def find_config(path: str | PathLike[str]) -> Path:
    """Return the file at `path`, or the preset of that name, such as `configs/ppo/cartpole.yaml` or `ppo/cartpole`.

    Names in the zoo, such as `zoo/classic/ppo_cartpole.yaml`, are found as well.
    """
    given = Path(path)
    if given.is_file():
        return given
    name = preset_name(given.as_posix())
    known = presets()
    if name in known:
        return known[name]
    kind = "is a folder, not a config file" if given.is_dir() else "does not exist"
    raise UserError(f"config {path} {kind}{did_you_mean(name, [*known, *zoo_names()], nearness=NEAR)}")


def find_preset(name: str) -> Path:
    """Return the file of a preset, or of a config at that path; raise an error with the nearest preset."""
    known = known_as(name)
    if known is None:
        near = did_you_mean(preset_name(name), [*presets(), *zoo_names()], nearness=NEAR)
        raise UserError(f"there is no preset '{name}'{near or '; rl-training zoo list shows all presets'}")
    return find_config(known)


def preset_name(given: str) -> str:
    """Return the name of a preset under its algorithm, also if its name in the zoo is given; others are unchanged."""
    name = given.removeprefix("configs/").removesuffix(".yaml")
    return zoo_names().get(name.removeprefix("zoo/"), name)


def known_as(given: str) -> str | None:
    """Return the name of a preset, or the path of a config file; None if there is neither.

    A file takes precedence over a preset of the same name.
    """
    name, known, file = preset_name(given), presets(), Path(given)
    if file.is_file() and (name not in known or not file.samefile(known[name])):
        return given
    return name if name in known else None


def presets() -> dict[str, Path]:
    """Return all presets by name, such as `ppo/cartpole`."""
    return {
        preset.relative_to(folder).with_suffix("").as_posix(): preset
        for folder in shipped("configs")
        for preset in sorted(folder.rglob("*.yaml"))
    }


def zoo_names() -> dict[str, str]:
    """Return the name under its algorithm of each preset in the zoo, such as `classic/ppo_cartpole`."""
    known = {zoo_stem(name): name for name in presets()}
    return {
        f"{link.parent.name}/{link.stem}": known[link.stem]
        for folder in shipped("zoo")
        for link in sorted(folder.glob("*/*.yaml"))
        if link.stem in known
    }


def zoo_stem(name: str) -> str:
    """Return the file name of a preset in its family.

    >>> zoo_stem("ppo/breakout_atari")
    'ppo_breakout'
    """
    return name.replace("/", "_").removesuffix("_atari")


def read_presets() -> list[Preset]:
    """Return all presets; reads plain YAML and imports nothing heavy."""
    # the C parser, if available, reads eighty files in forty milliseconds; `load_config` reads strictly
    loader, found = getattr(yaml, "CSafeLoader", yaml.SafeLoader), []
    for name, path in presets().items():
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
        dataset = data.get("dataset") or ""
        offline = bool(dataset) and data.get("dataset_fraction", 1.0) == 1.0
        unit, budget = ("updates", "total_updates") if offline else ("steps", "total_timesteps")
        task = data["algo"], data.get("env_id", ""), data.get("env_kwargs", {}), data[budget]
        found.append(Preset(name, path, *task, about_of(data, name), dataset, unit))
    return found


def shipped(name: str) -> list[Path]:
    """Return the folders of this name that come with the package: beside its code, or at the root of a checkout."""
    package = Path(__file__).resolve().parents[1]
    return [folder for folder in (package / name, package.parents[1] / name) if folder.is_dir()]


def about_of(data: Mapping[str, Any], source: str) -> About:
    """Return the `about:` block of a config file; raise an error for unknown keys, which may be misspelt."""
    given = data.get("about", {})
    if not isinstance(given, Mapping):
        raise ConfigError([f"about is {given!r}; use a map of texts, such as 'summary: …'"], source)
    known, problems = [item.name for item in fields(About)], []
    for key, value in given.items():
        if key not in known:
            problems.append(f"unknown key 'about.{key}'{did_you_mean(str(key), known)}")
        elif not isinstance(value, str | int | float):
            problems.append(f"about.{key} is {value!r}; use text")
    if problems:
        raise ConfigError(problems, source)
    return About(**{key: str(value) for key, value in given.items()})


def settings_of(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the settings of a config file, without its `about:` block, which is checked."""
    if "presets" in data and "algo" not in data:
        raise ConfigError(
            [f"it is a manifest, not a config; rl-training benchmark {source} trains what it lists"], source
        )
    about_of(data, source)
    return {key: value for key, value in data.items() if key != "about"}
