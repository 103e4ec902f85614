"""`rl-training dataset`: show, import, merge and split datasets."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from rl_training.cli.arguments import Option, parse
from rl_training.cli.tables import json_text, number, print_table, size
from rl_training.core.errors import UserError, did_you_mean, printable

HELP = """usage: rl-training dataset ACTION [options]

actions:
  show DATASET                                episodes, returns, actions, bounds, environment
  import TABLE --to DIR                       write a table (.npz, .csv, .parquet) as a Minari dataset
  merge DATASET DATASET ... --to DIR          write the episodes of several datasets as one
  split DATASET --fractions A B --to DIR DIR  divide the episodes at random

A DATASET is a Minari folder or id, a run folder, whose replay data is used, or a table.

start here:
  rl-training dataset show runs/RUN
  rl-training dataset import data.csv --to data --env-id Pendulum-v1
  rl-training train bc --dataset data

rl-training dataset ACTION --help lists all flags.
"""
Format = Literal["hdf5", "arrow", "parquet"]
WIDTH = 40
"""Characters of the longest bar of a histogram."""


@dataclass(frozen=True, kw_only=True)
class Show:
    """Show a dataset: episodes, lengths, returns, actions, bounds, environment, and who recorded it."""

    dataset: Annotated[str | None, Option(positional=True, metavar="DATASET")] = None
    """A Minari folder or id, a run folder, or a table."""
    plot: Annotated[str | None, Option(metavar="FILE")] = None
    """File to write histograms of returns, lengths and actions to, as a picture."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True)
class Import:
    """Write a table as a Minari dataset.

    A vector is one column of vectors, or columns such as observations_0 and observations_1; entries of a Dict
    observation are columns such as observations/camera. Usual names of columns are recognized.
    """

    table: Annotated[str | None, Option(positional=True, metavar="TABLE")] = None
    """The file: .npz, .csv or .parquet."""
    to: Annotated[str | None, Option(metavar="DIR")] = None
    """The new folder."""
    observations: Annotated[str | None, Option(metavar="NAME")] = None
    """Column of observations."""
    actions: Annotated[str | None, Option(metavar="NAME")] = None
    """Column of actions."""
    rewards: Annotated[str | None, Option(metavar="NAME")] = None
    """Column of rewards."""
    terminations: Annotated[str | None, Option(metavar="NAME")] = None
    """Column that says which steps ended the task."""
    truncations: Annotated[str | None, Option(metavar="NAME")] = None
    """Column that says which steps ended an episode by a time limit."""
    episode_id: Annotated[str | None, Option(metavar="NAME")] = None
    """Column with the number or name of the episode."""
    next_observations: Annotated[str | None, Option(metavar="NAME")] = None
    """Column of next observations; without it, the last step of truncated episodes is dropped."""
    env_id: str | None = None
    """Environment that the table was recorded in; if it can be built, its spaces are the dataset's."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for its constructor, as a YAML map."""
    max_episode_steps: int | None = None
    """Its time limit, if that is not its own."""
    action_low: tuple[float, ...] = ()
    """Lower bound of continuous actions: one number, or one per dimension."""
    action_high: tuple[float, ...] = ()
    """Upper bound of continuous actions."""
    format: Format = "hdf5"
    """Format of the files."""


@dataclass(frozen=True, kw_only=True)
class Merge:
    """Write the episodes of several datasets with the same spaces as one Minari dataset."""

    datasets: Annotated[tuple[str, ...], Option(positional=True, metavar="DATASET")] = ()
    """Two datasets or more."""
    to: Annotated[str | None, Option(metavar="DIR")] = None
    """The new folder."""
    format: Format = "hdf5"
    """Format of the files."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Divide the episodes of a dataset at random, and write each part as a Minari dataset."""

    dataset: Annotated[str | None, Option(positional=True, metavar="DATASET")] = None
    """The dataset, which is not changed."""
    fractions: tuple[float, ...] = (0.9, 0.1)
    """Parts of the episodes, which add up to 1."""
    to: Annotated[tuple[str, ...], Option(metavar="DIR")] = ()
    """One new folder per part."""
    seed: int = 0
    """Seed of the division."""
    format: Format = "hdf5"
    """Format of the files."""


def run(argv: list[str]) -> int:
    """Run the chosen action."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if argv else 2
    actions = {"show": show, "import": import_table, "merge": merge, "split": split}
    if argv[0] not in actions:
        remedy = did_you_mean(argv[0], actions) or f"; use one of {', '.join(actions)}"
        raise UserError(f"unknown action '{argv[0]}'{remedy}")
    return actions[argv[0]](argv[1:])


def show(argv: list[str]) -> int:
    """Print what a dataset holds."""
    flags = parse(Show, argv, "rl-training dataset show")
    if flags.dataset is None:
        raise UserError("dataset show needs a dataset: rl-training dataset show DIR")
    from rl_training.datasets.summary import save_picture, summary
    from rl_training.experiment.run_data import open_named

    dataset = open_named(flags.dataset)
    found = summary(dataset)
    if flags.plot is not None:
        try:
            save_picture(dataset, Path(flags.plot))
        except (OSError, ValueError) as error:
            raise UserError(f"{flags.plot} cannot be written: {error}") from error
    if flags.json:
        print(json_text(found))
    else:
        print_page(found)
    return 0


def import_table(argv: list[str]) -> int:
    """Write a table as a Minari dataset."""
    flags = parse(Import, argv, "rl-training dataset import")
    if flags.table is None or flags.to is None:
        raise UserError("dataset import needs a table and --to: rl-training dataset import data.csv --to DIR")
    from rl_training.datasets.dataset import RecordedIn
    from rl_training.datasets.minari_writing import check_target, write_minari
    from rl_training.datasets.opening import open_recording
    from rl_training.datasets.tables import NAMES, TableOptions

    folder = Path(flags.to).expanduser()
    check_target(folder)
    if not Path(flags.table).expanduser().is_file():
        raise UserError(f"there is no file {flags.table}; give a table (.npz, .csv, .parquet)")
    options = TableOptions(
        **{name: getattr(flags, name) for name in NAMES},
        action_low=flags.action_low,
        action_high=flags.action_high,
        recorded_in=RecordedIn(flags.env_id or "", flags.env_kwargs, flags.max_episode_steps),
    )
    recording = open_recording(flags.table, spaces=_spaces(flags), options=options)
    _written(folder, write_minari(recording, folder, flags.format), recording.remarks)
    return 0


def _spaces(flags: Import) -> Any:
    """Return the spaces of the environment that the flags name; None if there is none, or it cannot be built."""
    if flags.env_id is None:
        return None
    from rl_training.config import TrainConfig
    from rl_training.experiment.run_data import spaces_of

    config = TrainConfig(
        algo="bc",
        dataset=flags.table,
        env_id=flags.env_id,
        env_kwargs=flags.env_kwargs,
        max_episode_steps=flags.max_episode_steps,
    )
    try:
        return spaces_of(config)
    except UserError as error:
        text = f"note: the spaces are inferred from the table, as {flags.env_id} cannot be built: {error}"
        print(printable(text), file=sys.stderr)
        return None


def merge(argv: list[str]) -> int:
    """Write several datasets as one."""
    flags = parse(Merge, argv, "rl-training dataset merge")
    if len(flags.datasets) < 2 or flags.to is None:
        raise UserError(
            "dataset merge needs two datasets and --to: rl-training dataset merge ONE OTHER --to DIR"
        )
    from rl_training.datasets.minari_writing import check_target, write_minari
    from rl_training.datasets.opening import open_recording
    from rl_training.datasets.recording import merged
    from rl_training.experiment.run_recording import read_run

    folder = Path(flags.to).expanduser()
    check_target(folder)
    recording = merged([open_recording(name, read_run=read_run) for name in flags.datasets], flags.to)
    _written(folder, write_minari(recording, folder, flags.format), recording.remarks)
    return 0


def split(argv: list[str]) -> int:
    """Divide a dataset."""
    flags = parse(Split, argv, "rl-training dataset split")
    if flags.dataset is None or len(flags.to) != len(flags.fractions):
        raise UserError(
            "dataset split needs a dataset, and one folder per fraction: rl-training dataset split DIR --fractions 0.9 "
            "0.1 --to TRAIN TEST"
        )
    folders = [Path(folder).expanduser() for folder in flags.to]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("two parts have the same folder; give them different ones")
    from rl_training.datasets.minari_writing import check_target, write_minari
    from rl_training.datasets.opening import open_recording
    from rl_training.datasets.recording import split as parts_of
    from rl_training.experiment.run_recording import read_run

    for folder in folders:
        check_target(folder)
    recording = open_recording(flags.dataset, read_run=read_run)
    for part in parts_of(recording, list(flags.fractions), flags.seed, list(map(str, folders))):
        _written(Path(part.name), write_minari(part, Path(part.name), flags.format), part.remarks)
    return 0


def _written(folder: Path, episodes: int, remarks: Sequence[str]) -> None:
    for remark in remarks:
        print(printable(f"note: {remark}"), file=sys.stderr)
    print(printable(f"{folder}: {episodes:,} episodes"))


def print_page(found: dict[str, Any]) -> None:
    """Print a summary as a page."""
    ended = found["terminated_episodes"]
    facts = {key: found["facts"][key] for key in ("algorithm_name", "author", "description", "written_by", "run")
             if found["facts"].get(key)}  # fmt: skip
    lines = {
        "Dataset": found["name"],
        "Episodes": f"{found['episodes']:,} ({ended:,} terminated, {found['episodes'] - ended:,} truncated)",
        "Steps": f"{found['steps']:,} ({size(found['bytes'])})",
        "Environment": found["env_id"] or "not named",
        "Observations": found["observation_space"],
        "Actions": found["action_space"],
        **{key.replace("_", " ").capitalize(): value for key, value in facts.items()},
    }
    for label, text in lines.items():
        print(printable(f"{label:<16}{text}"))
    for remark in found["remarks"]:
        print(printable(f"{'Note':<16}{remark}"))
    print()
    columns = ("mean", "std", "min", "quartile_1", "median", "quartile_3", "max")
    rows = [[name, *(number(found[name][key], ",.2f") for key in columns)] for name in ("returns", "lengths")]
    print_table(["", *columns], rows, columns)
    histogram = found["return_histogram"]
    print("\nReturns")
    _bars([f"{edge:,.1f}" for edge in histogram["edges"][:-1]], histogram["counts"])
    _print_actions(found["actions"])
    print("\nObserved range of observations")
    for entry in found["observations"]:
        low, high = (", ".join(f"{value:.3g}" for value in entry[side][:12]) for side in ("low", "high"))
        print(printable(f"  {entry['entry'] or '':<10} low {low}\n  {'':<10} high {high}"))


def _print_actions(actions: dict[str, Any]) -> None:
    if "counts" in actions:
        for place, counts in enumerate(actions["counts"]):
            print(f"\nActions{f' of dimension {place}' if len(actions['counts']) > 1 else ''}")
            _bars([str(value) for value in counts], list(counts.values()))
        return
    print("\nActions")
    rows = []
    (low, high), (lowest, highest) = actions["bounds"], actions["observed"]
    for place, coverage in enumerate(actions["coverage"]):
        share = "-" if coverage is None else f"{coverage:.0%}"
        sides = [number(side[place], ".3g") for side in (low, high, lowest, highest)]
        rows.append([str(place), *sides, share])
    header = ["dimension", "low", "high", "lowest", "highest", "bins used"]
    print_table(header, rows, header)


def _bars(labels: list[str], counts: list[int]) -> None:
    most, width = max(counts, default=1), max(map(len, labels), default=0)
    for label, count in zip(labels, counts, strict=True):
        print(f"  {label:>{width}}  {count:>9,}  {'#' * round(WIDTH * count / max(most, 1))}")
