"""Renews what of the zoo is made from presets, manifests and results: links, `expected:` lines and `zoo/README.md`.

python scripts/zoo_pages.py           # writes
python scripts/zoo_pages.py --check   # tells what is not current, and exits with 1

A preset is a file of `configs/`; `zoo/<family>/` holds a link to it, and `zoo/results/` what it reached.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rl_training.config.presets import BENCHMARK, NOT_MEASURED, SHORT, Preset, read_presets, zoo_stem
from rl_training.lab import statistics
from rl_training.lab.benchmark_jobs import contenders
from rl_training.lab.benchmark_text import published_figure, shown
from rl_training.lab.manifests import manifests, read_manifest
from rl_training.lab.preset_scores import estimate, expected, read_measured
from rl_training.lab.scored_runs import read_records
from rl_training.lab.statistics import Published

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
again as links under their family. The score of a run is the mean of the last tenth of its evaluations, that of a
preset the interquartile mean of its seeds with the 95% interval; *not measured* means just that. A score links to
every evaluation behind it. Where a preset has five seeds, nothing was chosen on those; of older scores with fewer
that is not recorded everywhere.

Published figures are what others report of the algorithm on the task. {rule}. They were measured in other ways than
ours (one agent, the last training episodes, the best evaluation), so that a verdict is a hint, not a race.

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
        if path.stem not in (BENCHMARK, SHORT) and path not in links:
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
    lines = [HEAD.format(count=len(presets), rule=statistics.VERDICT_RULE)]
    for family, title in TITLES.items():
        own = sorted(
            (preset for preset in presets if preset.about.family == family),
            key=lambda preset: (preset.task, preset.name),
        )
        needs = sorted({preset.about.needs for preset in own if preset.about.needs})
        manifest = f"[{family}/{BENCHMARK}.yaml]({family}/{BENCHMARK}.yaml)"
        said = f"Benchmark: {manifest}." + (f" Needs {', '.join(needs)}." if needs else "")
        figures = published_figures(family)
        lines += [f"## {title}", "", said, ""]
        lines += [
            "| preset | environment | steps | score | published | verdict | settings from |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [row(preset, figures.get(preset.name)) for preset in own]
        lines += ["", *remarks(figures), *short(family)]
    return "\n".join(lines)


def published_figures(family: str) -> dict[str, Published]:
    """Return the figures of others by preset."""
    return {
        entry.preset: Published(**entry.published)
        for entry in read_manifest(family).entries
        if entry.published is not None
    }


def row(preset: Preset, published: Published | None) -> str:
    """Return a preset's row of the page."""
    result = read_measured(preset.name)
    cells = [
        f"[{preset.name}]({preset.about.family}/{zoo_stem(preset.name)}.yaml)",
        preset.task,
        f"{preset.total_timesteps:,}",
        *beside([] if result is None else [run["score"] for run in result["runs"]], published),
        preset.about.source,
    ]
    if result is not None:
        cells[3] = f"[{cells[3]}](results/{zoo_stem(preset.name)}.json)"
    return f"| {' | '.join(cells)} |"


def beside(scores: Sequence[float], published: Published | None) -> list[str]:
    """Return the cells of scores, of a published figure and of the verdict."""
    figure = "" if published is None else f"{published_figure(published)}, {published.source}"
    if not scores:
        return [NOT_MEASURED, figure, ""]
    mean = statistics.estimate(statistics.mean, [np.array(scores)], statistics.draw([len(scores)]))
    verdict = "" if published is None else statistics.verdict(mean, published)
    seeds = f"{len(scores)} seeds" if len(scores) > 1 else "one seed"
    return [f"{shown(estimate(scores))}, {seeds}", figure, verdict]


def remarks(figures: dict[str, Published]) -> list[str]:
    """Return what is to be said of figures and verdicts, a line each."""
    said = [f"- {name}: {figure.remark}" for name, figure in figures.items() if figure.remark]
    return [*said, ""] if said else []


def short(family: str) -> list[str]:
    """Return the table of a family's short benchmark, from the records of its report."""
    name = f"{family}/{SHORT}"
    folder = ZOO / "results" / f"{family}_{SHORT}"
    if name not in manifests() or not folder.is_dir():
        return []
    records, manifest = read_records(folder), read_manifest(name)
    lines = [
        f"### {TITLES[family]}, a short budget",
        "",
        f"{manifest.summary} Made by `rl-training benchmark {name}`: [manifest]({name}.yaml), "
        f"[report with curves](results/{folder.name}/report.md).",
        "",
        "| environment | preset | steps | score | published | verdict |",
        "|---|---|---|---|---|---|",
    ]
    found = sorted(contenders(manifest, {}), key=lambda item: item.task)
    for item in found:
        runs = [run for run in records if (run.task, run.name) == (item.task, item.name)]
        cells = beside([run.score for run in runs], item.published)
        lines.append(
            f"| {item.task} | {item.preset} | {item.config.total_timesteps:,} | {' | '.join(cells)} |"
        )
    return [*lines, "", *remarks({item.preset: item.published for item in found if item.published})]


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
