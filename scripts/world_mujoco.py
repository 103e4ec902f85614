"""Which versions of MuJoCo work with which packages: installs them, builds, resets and steps environments of each.

Part of `make world`; the outcome is in `results/world_mujoco.json`, and what is there is not done again.
"""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from world_cell import Place, attempts
from world_suites import DM_CONTROL, FOLDERS, ROBOTICS

from rl_training.core.errors import reason
from rl_training.experiment.files import write_json

DATA = Path(__file__).resolve().parents[1] / "results" / "world_mujoco.json"
VERSIONS = {
    "4.0.0": "1.0.50", "3.17.0": "1.0.50", "3.12.0": "1.0.45", "3.11.0": "1.0.44", "3.6.0": "1.0.38",
    "3.3.6": "1.0.34", "3.2.7": None, "2.3.7": None,
}  # fmt: skip
"""MuJoCo, and the newest dm_control that asks for no later one; None where it is not tried."""
GYMNASIUM = (
    "Reacher-v5", "Pusher-v5", "InvertedPendulum-v5", "InvertedDoublePendulum-v5", "HalfCheetah-v5", "Hopper-v5",
    "Swimmer-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5", "HumanoidStandup-v5",
)  # fmt: skip
FAMILIES = {"": GYMNASIUM, "gymnasium_robotics:": ROBOTICS, "shimmy:": DM_CONTROL}


def install(*packages: str, target: Path) -> None:
    """Install packages alone into a folder, unless they are there."""
    if not target.exists():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(target),
            *packages,
        ]
        subprocess.run(command, check=True)


def step(place: Place, column: str) -> dict[str, Any]:
    """Build, reset and step an environment."""
    import gymnasium
    import mujoco

    if mujoco.__version__ != column:
        return {"outcome": "fault", "said": f"mujoco {mujoco.__version__} was imported"}
    try:
        env = gymnasium.make(place.env_id)
        env.reset(seed=0)
        for _ in range(20):
            env.step(env.action_space.sample())
    except Exception as error:
        return {"outcome": "refused", "said": f"{type(error).__name__}: {reason(error)}"}
    return {"outcome": "ok"}


def main() -> int:
    """Try what is missing."""
    found: dict[str, Any] = json.loads(DATA.read_text()) if DATA.exists() else {}
    for version, dm_control in VERSIONS.items():
        if version in found:
            continue
        packages = [f"dm_control=={dm_control}"] if dm_control else []
        if version != metadata.version("mujoco"):
            packages.append(f"mujoco=={version}")
        install(*packages, target=FOLDERS / f"trial-{version}")
        row: dict[str, Any] = {"dm_control": dm_control}
        for module, ids in FAMILIES.items():
            if module == "shimmy:" and dm_control is None:
                continue
            ends = {env_id: _try(version, module + env_id) for env_id in ids}
            row[module.rstrip(":") or "gymnasium"] = {k: v for k, v in ends.items() if v != "ok"} | {
                "of": len(ids)
            }
        found = {
            each: row if each == version else found[each]
            for each in VERSIONS
            if each == version or each in found
        }
        write_json(DATA, found)
        print(version, row, flush=True)
    return 0


def _try(version: str, env_id: str) -> str:
    place = Place("mujoco", env_id, path=FOLDERS / f"trial-{version}")
    ((_, end),) = attempts(place, [version], step)
    return "ok" if end["outcome"] == "ok" else str(end["said"])


def table() -> str:
    """Return what was found as a part of the page."""
    found: dict[str, Any] = json.loads(DATA.read_text()) if DATA.exists() else {}
    lines = [
        "## MuJoCo versions\n",
        "Environments of each package that could be built, reset and stepped 20 times, or the error message.\n",
        "| mujoco | gymnasium, v5 | gymnasium-robotics | dm_control with shimmy |",
        "|---|---|---|---|",
    ]
    for version, row in found.items():
        cells = [_cell(row.get(name)) for name in ("gymnasium", "gymnasium_robotics", "shimmy")]
        cells[2] += f" ({row['dm_control']})" if row["dm_control"] else ""
        lines.append(f"| {version} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(part: dict[str, Any] | None) -> str:
    if part is None:
        return "not tried"
    failed = {name: said for name, said in part.items() if name != "of"}
    said = "; ".join(f"`{text.strip()}`" for text in dict.fromkeys(failed.values()))
    return f"{part['of'] - len(failed)} of {part['of']}" + (f": {said}" if said else "")


if __name__ == "__main__":
    sys.exit(main())
