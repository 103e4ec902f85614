"""Writes a tournament as `tournament.json`, `tournament.md` and `tournament.png`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_training.core.errors import UserError, printable
from rl_training.experiment.files import write_bytes, write_json, write_text
from rl_training.experiment.games.tournament import Tournament
from rl_training.experiment.logs.drawing import as_png, new_figure, silent_drawing, warn_not_drawn

MAX_LABEL = 30
"""Characters of a name that tables and pictures show."""


def write_tournament(tournament: Tournament, folder: Path | str) -> list[Path]:
    """Write all files into a folder; return them."""
    folder, found = Path(folder), tournament.to_dict()
    files = [folder / f"tournament.{ending}" for ending in ("json", "md", "png")]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(files[0], found)
        write_text(files[1], tournament_text(found))
        try:
            with silent_drawing():
                write_bytes(files[2], _draw(found))
        except Exception as error:  # matplotlib, the disk
            warn_not_drawn(files[2], error)
            files.pop()
    except OSError as error:
        raise UserError(
            f"the tournament cannot be written to {folder}: {error.strerror}; choose another folder"
        ) from error
    return files


def tournament_text(found: dict[str, Any]) -> str:
    """Return the tables of a tournament as Markdown."""
    players = found["players"]
    labels = short_names([player["name"] for player in players])
    numbers = [str(number) for number in range(1, len(players) + 1)]
    rows = [["", "player", "Elo", "95%", "won", "drawn", "lost", "score"]]
    for number, label, player in zip(numbers, labels, players, strict=True):
        low, high = player["elo_interval"]
        counts = [str(player[name]) for name in ("wins", "draws", "losses")]
        rows.append(
            [
                number,
                label,
                f"{player['elo']:.0f}",
                f"{low:.0f} to {high:.0f}",
                *counts,
                f"{player['score']:.1%}",
            ]
        )
    cross = [["", "score of row against column", *numbers]]
    for number, label, player in zip(numbers, labels, players, strict=True):
        scores = [player["against"].get(other["name"]) for other in players]
        cross.append([number, label, *("" if score is None else f"{score:.0%}" for score in scores)])
    lines = [
        f"# Tournament: {printable(found['env_id'])}",
        "",
        f"{found['games_per_pair']} games of each pair, both players from each seat: {found['how']}. "
        f"Seed {found['seed']}.",
        "",
        *_table(rows),
        "",
        f"{found['rating_rule']}. Anchor: {found['anchor']}.",
        "",
        *_table(cross),
    ]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table whose columns are aligned; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| "
        + " | ".join(
            cell.ljust(width) if column == 1 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in rows
    ]
    rule = (
        f":{'-' * (width + 1)}" if column == 1 else f"{'-' * (width + 1)}:"
        for column, width in enumerate(widths)
    )
    return [lines[0], f"|{'|'.join(rule)}|", *lines[1:]]


def short_names(names: Sequence[str]) -> list[str]:
    """Return the ends of paths that tell the players apart.

    >>> short_names(["runs/a/checkpoints/step_8", "runs/b/checkpoints/step_8", "random"])
    ['a/step_8', 'b/step_8', 'random']
    """
    parts = [[part for part in Path(name).parts if part != "checkpoints"] for name in names]
    labels = []
    for own in parts:
        length = 1
        while length < len(own) and sum(other[-length:] == own[-length:] for other in parts) > 1:
            length += 1
        label = printable("/".join(own[-length:])).replace("|", "?")
        labels.append(label if len(label) <= MAX_LABEL else f"…{label[-MAX_LABEL + 1 :]}")
    return labels


def _draw(found: dict[str, Any]) -> bytes:
    """Draw the cross table as a heat map beside the ratings with their intervals."""
    players, count = found["players"], len(found["players"])
    labels = short_names([player["name"] for player in players])
    figure = new_figure(7.0 + 0.8 * count, 2.2 + 0.5 * count)
    figure.set_layout_engine("constrained")
    left, right = figure.subplots(1, 2)
    scores = [[player["against"].get(other["name"], float("nan")) for other in players] for player in players]
    left.imshow(scores, cmap="RdYlGn", vmin=0.0, vmax=1.0, aspect="auto")
    for row, line in enumerate(scores):
        for column, score in enumerate(line):
            if score == score:  # not nan
                left.text(column, row, f"{score:.0%}", ha="center", va="center", fontsize=9)
    left.set_xticks(range(count), [str(number + 1) for number in range(count)])
    left.set_yticks(
        range(count), [f"{label}  {number + 1}" for number, label in enumerate(labels)], fontsize=8
    )
    left.set_title("score of row against column", fontsize=10)
    for row, player in enumerate(players):
        low, high = player["elo_interval"]
        right.plot([low, high], [row, row], color="#0072B2", linewidth=4, alpha=0.5)
        right.plot(player["elo"], row, "o", color="black", markersize=5)
    right.set_yticks(range(count), [str(number + 1) for number in range(count)])
    right.set_ylim(count - 0.5, -0.5)
    right.grid(axis="x", alpha=0.3)
    right.set_title(f"Elo with 95% intervals ({found['anchor']})", fontsize=10)
    openings = f", {found['random_openings']} random opening moves" if found["random_openings"] else ""
    actions = "sampled" if found["sampled"] else "most likely"
    figure.supxlabel(
        f"{found['env_id']}: {found['games_per_pair']} games of each pair, {actions} actions{openings}",
        fontsize=8,
    )
    return as_png(figure)
