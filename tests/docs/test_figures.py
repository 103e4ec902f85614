"""Every measured figure in README and docs comes from `results/`, or is a constant of the code.

`FIGURES` lists where each figure comes from. A figure that is not listed there fails a test: give it a source or delete
it. `UPDATE_DOCS=1 pytest tests/docs/test_figures.py` rewrites the table of speeds in the README.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from rl_training.config import TrainConfig, strict_yaml
from rl_training.config.presets import presets
from rl_training.core.spaces import as_data
from rl_training.envs import determinism
from rl_training.experiment import diagnosis, files, throughput
from rl_training.experiment.checkpoints import foreign_settings, tensor_files
from rl_training.experiment.checkpoints import format as checkpoint_format
from rl_training.experiment.logs import rows
from rl_training.experiment.records import search
from rl_training.lab import manifests
from rl_training.lab.benchmark_text import COVERAGE
from rl_training.lab.statistics import RESAMPLES

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
SB3, CONTRIB = "stable-baselines3", "sb3-contrib"
SPEEDS = [
    ("PPO, CartPole-v1", SB3),
    ("PPO, HalfCheetah-v5", SB3),
    ("PPO, Breakout, 8 games", SB3),
    ("A2C, CartPole-v1", SB3),
    ("DQN, CartPole-v1", SB3),
    ("DQN, Breakout, 1 game", SB3),
    ("SAC, HalfCheetah-v5", SB3),
    ("TD3, HalfCheetah-v5, 256 x 256", SB3),
    ("RecurrentPPO, CartPole-v1", CONTRIB),
]


def table_rows(name: str) -> Iterator[list[str]]:
    """Yield the cells of every table row of a file in `results/`."""
    for line in (ROOT / "results" / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def speed(row: str, peer: str) -> tuple[str, str, float]:
    """Return our steps per second, those of the peer, and the ratio."""
    (cells,) = [cells for cells in table_rows("bench.md") if cells[:2] == [row, peer]]
    ratio = re.match(r"\*\*([\d.]+) ", cells[4])
    assert ratio is not None, cells
    return cells[2].split(" ")[0], cells[3].split(" ")[0], float(ratio[1])


def speed_table() -> str:
    """Return the table of speeds of the README."""
    lines = ["| | rl_training | Stable-Baselines3 | speed-up |", "|---|---|---|---|"]
    for row, peer in SPEEDS:
        ours, theirs, ratio = speed(row, peer)
        lines.append(f"| {row} | {ours} | {theirs}{' (contrib)' * (peer == CONTRIB)} | {ratio:.1f} × |")
    return "\n".join(lines)


def kills(name: str, word: str = "") -> str:
    """Return how often runs whose description has this word were killed; no kill may have made a difference."""
    rows = [cells for cells in table_rows(name) if cells[1].isdecimal()]
    assert [cells for cells in rows if cells[-1] != "0"] == []
    return str(sum(int(cells[1]) for cells in rows if word in cells[0] and cells[0] != "**all**"))


def first(name: str, pattern: str) -> str:
    """Return the first group of a pattern in a file of `results/`."""
    found = re.search(pattern, (ROOT / "results" / name).read_text(encoding="utf-8"))
    assert found is not None, (name, pattern)
    return found[1]


def replay_memory() -> tuple[str, str]:
    """Return the gigabytes of a million Atari transitions, and the part of the peer's memory that they take."""
    (cells,) = [cells for cells in table_rows("replay_memory.md") if cells[0] == "ours, uniform"]
    parts = {8: "one eighth", 7: "one seventh", 6: "one sixth"}
    return f"{float(cells[3].split()[0]):.1f}", parts[round(float(cells[4].removeprefix("1/")))]


def default(name: str) -> str:
    (item,) = [item for item in fields(TrainConfig) if item.name == name]
    return f"{item.default:,}"


def mujoco_version() -> str:
    found = re.search(
        r"^mujoco==([\d.]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert found is not None
    return found[1]


def breakout_pixels() -> str:
    config = yaml.safe_load((ROOT / "configs" / "ppo" / "breakout_atari.yaml").read_text(encoding="utf-8"))
    assert config["preprocessing"] == "atari"
    return str(config.get("image_size", 84))


MIB, KIB = 2**20, 2**10


def bounds_table() -> str:
    """Return the table of bounds in docs/reliability.md."""
    counts = foreign_settings.MAX_COUNTS
    bounds = [
        ("a config or manifest in YAML", f"{strict_yaml.MAX_BYTES // KIB} KiB, {strict_yaml.MAX_VALUES:,} values"),
        ("a number in YAML", f"{strict_yaml.MAX_DIGITS} digits"),
        ("`metadata.json`", f"{files.MAX_METADATA_BYTES // MIB} MiB"),
        (
            "`manifest.json` and other JSON",
            f"{files.MAX_JSON_BYTES // MIB} MiB; a manifest signed by you, {files.MAX_TRUSTED_JSON_BYTES // MIB} MiB",
        ),
        ("`evaluations.jsonl` in lists of runs", f"{files.MAX_RECORDS_BYTES // MIB} MiB, {rows.MAX_ROWS:,} rows"),
        ("any log", f"{rows.MAX_LOG_BYTES // MIB:,} MiB, {rows.MAX_LINE_BYTES // MIB} MiB per row"),
        ("a log that is read completely", f"{rows.MAX_WHOLE_BYTES // MIB} MiB; of a larger one, {rows.SAMPLE:,} rows"),
        (
            "the header of a tensor file",
            f"{tensor_files.MAX_HEADER_BYTES // MIB} MiB; signed by you, "
            f"{tensor_files.MAX_TRUSTED_HEADER_BYTES // MIB} MiB",
        ),
        ("a space", f"{as_data.MAX_NUMBERS:,} numbers, {as_data.MAX_ENTRIES:,} entries"),
        ("a run folder", f"{files.MAX_FILES:,} files"),
        ("folders searched for runs", f"{search.MAX_FOLDERS:,}"),
        ("presets of a benchmark", f"{manifests.MAX_PRESETS}"),
        ("all tensors of a checkpoint, all replay data *", f"{checkpoint_format.MAX_UNSIGNED_BYTES // MIB} MiB each"),
        *((f"`{name}` *", f"{limit:,}") for name, limit in counts.items()),
        ("numbers in `env_kwargs` *", f"{foreign_settings.MAX_NUMBER:,}"),
        ("text in arguments *", f"{foreign_settings.MAX_TEXT} letters, not a path, not `module:Name`"),
        ("values in arguments *", f"{foreign_settings.MAX_ARGUMENTS:,}"),
        ("`env_wrappers` *", f"{foreign_settings.MAX_WRAPPERS}, numbers up to {foreign_settings.MAX_WRAPPER_NUMBER:,} "
         f"whose product is at most {foreign_settings.MAX_GROWTH:,}"),
    ]  # fmt: skip
    return "\n".join(
        ["| what | at most |", "|---|---|", *(f"| {what} | {limit} |" for what, limit in bounds)]
    )


def listening(variant: str) -> int:
    """Return the microseconds that listening adds to one step of eight CartPoles."""
    text = (ROOT / "results" / "callbacks.md").read_text(encoding="utf-8")
    found = re.search(rf"\| `{variant}[^|]*\| \d+ \| \+(\d+) \|", text)
    assert found is not None, variant
    return int(found[1])


FIGURES: list[tuple[str, str, Callable[[], str]]] = [
    ("docs/logging.md", r"takes about (\d+) µs per step, a tenth", lambda: str(listening("on_step"))),
    ("docs/logging.md", r"keyword takes about (\d+) µs", lambda: f"{listening('info_keywords') / 8:.0f}"),
    ("docs/troubleshooting.md", r"at most (\d+)% above", lambda: f"{100 * diagnosis.MARGIN:.0f}"),
    ("docs/memory.md", r"runs ([\d.]+) times as fast", lambda: f"{speed('RecurrentPPO, CartPole-v1', CONTRIB)[2]:.1f}"),
    ("docs/memory.md", r"killed (\d+) times", lambda: kills("chaos_memory_masks.md", "memory")),
    ("docs/masks.md", r"killed (\d+) times", lambda: kills("chaos_memory_masks.md", "masks")),
    ("docs/pixels.md", r"killed (\d+) times", lambda: kills("chaos_atari.md")),
    ("docs/pixels.md", r"standard (\d+) x \d+ setting", breakout_pixels),
    ("docs/pixels.md", r"transitions take ([\d.]+) GB", lambda: replay_memory()[0]),
    ("docs/pixels.md", r"about (one \w+) of Stable-Baselines3's buffer", lambda: replay_memory()[1]),
    ("docs/reliability.md", r"test with (\d+) kills", lambda: kills("chaos.md")),
    ("docs/reliability.md", r"another with (\d+) kills", lambda: kills("chaos_foreign.md")),
    ("docs/reliability.md", r"\[(\d+) cases\]", lambda: first("hostile.md", r"(\d+) (?:kinds of )?bad command line")),
    ("docs/reliability.md", r"\[(\d+) kinds of malicious", lambda: first("hostile_folders.md", r"(\d+) kinds")),
    ("docs/reliability.md", r"`max_eval_episode_steps` \(([\d,]+)\)", lambda: default("max_eval_episode_steps")),
    ("docs/scaling.md", r"less than (\d+) ms", lambda: f"{1000 * throughput.SECONDS_TO_MOVE:.0f}"),
    ("docs/benchmarks.md", r"(\d[\d,]*) resamples", lambda: f"{RESAMPLES:,}"),
    *(
        ("docs/benchmarks.md", rf"(\d+)% (?:of cases )?with {seeds}\b", lambda percent=percent: str(percent))
        for seeds, percent in COVERAGE.items()
    ),
    ("docs/zoo.md", r"# (\d+) presets", lambda: str(len(presets()))),
    ("docs/ecosystem.md", r"zoo use mujoco ([\d.]+)", mujoco_version),
    ("docs/ecosystem.md", r"mujoco==([\d.]+) gymnasium-robotics", mujoco_version),
]  # fmt: skip

DEFINITIONS = [r"95% (?:percentile bootstrap|interval)", r"21-25", r"10 s and 1 GB"]
"""Numbers with a unit that nobody measured: they say what something means."""

MEASURED = re.compile(
    r"\b[\d.,]*\d ?(?:%|×|(?:times|fold|percent|seconds?|minutes|hours|ms|µs|kB|MB|GB|MiB|GiB|kills|kinds|cases|"
    r"presets|resamples|lines of code)\b)"
)


def words_of(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("page", "pattern", "source"), FIGURES, ids=[f"{page}: {text}" for page, text, _ in FIGURES]
)
def test_a_figure_is_that_of_its_source(page, pattern, source):
    assert re.findall(pattern, words_of(page)) == [source()]


def test_the_speeds_in_the_readme_are_those_of_the_results():
    path = ROOT / "README.md"
    if os.environ.get("UPDATE_DOCS"):
        old = re.compile(r"\| \| rl_training \| Stable-Baselines3 \| speed-up \|\n(?:\|.*\n)+")
        path.write_text(
            old.sub(lambda _: speed_table() + "\n", path.read_text(encoding="utf-8")), encoding="utf-8"
        )
    assert speed_table() in path.read_text(encoding="utf-8"), "run this test with UPDATE_DOCS=1"


def test_the_bounds_on_untrusted_files_are_those_of_the_code():
    path = ROOT / "docs" / "reliability.md"
    if os.environ.get("UPDATE_DOCS"):
        old = re.compile(r"\| what \| at most \|\n(?:\|.*\n)+")
        path.write_text(
            old.sub(lambda _: bounds_table() + "\n", path.read_text(encoding="utf-8")), encoding="utf-8"
        )
    assert bounds_table() in path.read_text(encoding="utf-8"), "run this test with UPDATE_DOCS=1"


@pytest.mark.parametrize("page", PAGES)
def test_every_measured_figure_has_a_source(page):
    text = words_of(page)
    for table in (speed_table(), bounds_table()):
        text = text.replace(" ".join(table.split()), "")
    for _, pattern, _ in (item for item in FIGURES if item[0] == page):
        text = re.sub(pattern, "", text)
    for pattern in DEFINITIONS:
        text = re.sub(pattern, "", text)
    assert MEASURED.findall(text) == []


def test_the_check_of_environments_is_as_long_as_the_page_says():
    assert f"at most {determinism.MAX_STEPS} steps" in words_of("docs/reliability.md")
