"""Renews what of the zoo is made from the presets: links, `expected:` lines and `zoo/README.md`.

python scripts/zoo_pages.py           # writes
python scripts/zoo_pages.py --check   # tells what is not current, and exits with 1

A preset is a file of `configs/`; `zoo/<family>/` holds a link to it, and `zoo/results/` what it reached.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from rl_training.core.about import NOT_MEASURED
from rl_training.core.presets import BENCHMARK, Preset, read_presets, zoo_stem
from rl_training.experiment.measured import expected, read_measured

ROOT = Path(__file__).resolve().parents[1]
ZOO = ROOT / "zoo"
TITLES = {
    "classic": "Classic control and small tables",
    "box2d": "Box2D",
    "mujoco": "MuJoCo",
    "atari": "Atari, from pixels",
    "minatar": "MinAtar",
    "minigrid": "MiniGrid",
    "pixels": "A small game in pixels",
    "memory": "Tasks that need a memory",
    "masked": "Tasks that tell which actions are allowed",
}
HEAD = """# Zoo

Made by `python scripts/zoo_pages.py`. {count} presets: files of [configs](../configs) under their algorithm, and here
again as links under their family. The score is the mean of the last tenth of a run's evaluations, from the lowest
to the highest seed; *not measured* means just that. Every evaluation behind a score lies in [results](results).

```sh
rl-training zoo list --family classic
rl-training zoo run ppo/cartpole --seeds 5             # on the cores there are; the same command goes on
rl-training benchmark classic --seeds 5 --output-dir D # a family against each other: tables and pictures
```

[How it works](../docs/zoo.md).
"""


def main(check: bool) -> int:
    """Write what is not current, or name it."""
    found = list(stale())
    for path, content in found:
        print(f"{'not current' if check else 'written'}: {path.relative_to(ROOT)}")
        if not check:
            write(path, content)
    return 1 if check and found else 0


def stale() -> Iterator[tuple[Path, str | Path | None]]:
    """Yield files that differ from what they should be: a text, the target of a link, or nothing."""
    for preset in read_presets():
        text = preset.path.read_text(encoding="utf-8")
        if with_expected(text, preset.name) != text:
            yield preset.path, with_expected(text, preset.name)
    links = {link_of(preset): preset.path for preset in read_presets()}
    for path in sorted(ZOO.glob("*/*.yaml")):
        if path.stem != BENCHMARK and path not in links:
            yield path, None
    for path, target in links.items():
        if not path.is_symlink() or path.resolve() != target.resolve():
            yield path, target
    if not (ZOO / "README.md").is_file() or (ZOO / "README.md").read_text(encoding="utf-8") != page():
        yield ZOO / "README.md", page()


def write(path: Path, content: str | Path | None) -> None:
    """Write a text or a link, or delete what should not be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        path.write_text(content if path.name != "README.md" else page(), encoding="utf-8")
        return
    path.unlink(missing_ok=True)
    if content is not None:
        path.symlink_to(os.path.relpath(content, path.parent))


def link_of(preset: Preset) -> Path:
    """Return where a preset lies in its family."""
    return ZOO / preset.about.family / f"{zoo_stem(preset.name)}.yaml"


def with_expected(text: str, name: str) -> str:
    """Return a preset that says of its score what was measured."""
    result = read_measured(name)
    said = NOT_MEASURED if result is None else expected(result)
    return re.sub(r"^  expected: .*$", f"  expected: {said}", text, count=1, flags=re.MULTILINE)


def page() -> str:
    """Return `zoo/README.md`."""
    presets = read_presets()
    lines = [HEAD.format(count=len(presets))]
    for family, title in TITLES.items():
        own = sorted(
            (preset for preset in presets if preset.about.family == family),
            key=lambda preset: (preset.task, preset.name),
        )
        needs = sorted({preset.about.needs for preset in own if preset.about.needs})
        manifest = f"[{family}/{BENCHMARK}.yaml]({family}/{BENCHMARK}.yaml)"
        lines += [
            f"## {title}",
            "",
            f"Benchmark: {manifest}." + (f" Needs {', '.join(needs)}." if needs else ""),
            "",
        ]
        lines += ["| preset | environment | steps | score | settings from |", "|---|---|---|---|---|"]
        lines += [row(preset) for preset in own]
        lines.append("")
    return "\n".join(lines)


def row(preset: Preset) -> str:
    """Return a preset's row of the page."""
    score = preset.about.expected
    if read_measured(preset.name) is not None:
        score = f"[{score}](results/{zoo_stem(preset.name)}.json)"
    link = f"[{preset.name}]({preset.about.family}/{zoo_stem(preset.name)}.yaml)"
    return f"| {link} | {preset.task} | {preset.total_timesteps:,} | {score} | {preset.about.source} |"


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
