"""Figures of a benchmark report: intervals, profiles and curves, with one colour per name."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rl_training.experiment.logs.drawing import as_png, new_figure
from rl_training.lab.benchmark_summary import Improvement, Summary
from rl_training.lab.scored_runs import UNITS
from rl_training.lab.statistics import Band, Estimate

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000")
"""Distinguishable for colour-blind readers (Okabe and Ito)."""
DASHES = ("-", "--", ":", "-.")
COLUMNS = 3
PROFILE_LABELS = {
    "xlabel": "normalised score τ",
    "ylabel": "share of runs with score > τ",
    "ylim": (-0.02, 1.02),
}
TRAINING_LABELS = {"xlabel": "fraction of training", "ylabel": "IQM of normalised evaluations"}
TIME_LABEL = "wall time, evaluations and checkpoints included"
Style = Mapping[str, dict[str, Any]]


def pictures(summary: Summary) -> dict[str, Callable[[], bytes]]:
    """Return a drawing function for each figure with data, by file name."""
    style = _styles(sorted({entry.name for entry in summary.tasks}))
    clocks = {
        unit: [
            (entry.task, entry.name, entry.over_steps)
            for entry in summary.tasks
            if entry.over_steps and entry.unit == unit
        ]
        for unit in UNITS
    }
    times = [(entry.task, entry.name, entry.over_time) for entry in summary.tasks if entry.over_time]
    profiles = {entry.name: entry.profile for entry in summary.aggregates}
    training = {entry.name: entry.over_training for entry in summary.aggregates if entry.over_training}
    drawn: dict[str, Callable[[], bytes]] = {}
    if summary.aggregates:
        drawn["aggregates.png"] = lambda: _draw_aggregates(summary, style)
        drawn["profile.png"] = lambda: _draw_bands(profiles, style, PROFILE_LABELS)
    if training:
        drawn["training.png"] = lambda: _draw_bands(training, style, TRAINING_LABELS)
    if steps := clocks["steps"]:
        drawn["steps.png"] = lambda: _draw_panels(steps, style, "environment steps")
    if updates := clocks["updates"]:
        drawn["updates.png"] = lambda: _draw_panels(updates, style, "updates")
    if times:
        drawn["time.png"] = lambda: _draw_panels(times, style, TIME_LABEL, timed=True)
    if summary.improvements:
        drawn["improvement.png"] = lambda: _draw_improvements(summary.improvements, style)
    return drawn


def _styles(names: Sequence[str]) -> Style:
    return {
        name: {"color": COLOURS[k % len(COLOURS)], "linestyle": DASHES[k // len(COLOURS) % len(DASHES)]}
        for k, name in enumerate(names)
    }


def _draw_aggregates(summary: Summary, style: Style) -> bytes:
    """Draw a panel per statistic and a row per name: a bar for the interval, a line for the value."""
    entries = list(reversed(summary.aggregates))  # the first on top
    panels = {
        "IQM": [entry.iqm for entry in entries],
        "mean": [entry.mean for entry in entries],
        "median": [entry.median for entry in entries],
        "optimality gap (less is better)": [entry.optimality_gap for entry in entries],
    }
    figure = new_figure(10, 1.3 + 0.42 * len(entries))
    figure.set_layout_engine("constrained")
    all_axes = figure.subplots(1, len(panels), sharey=True)
    for axes, (title, estimates) in zip(all_axes, panels.items(), strict=True):
        _draw_bars(axes, estimates, [style[entry.name]["color"] for entry in entries])
        axes.set_title(title, fontsize=10)
        axes.set_yticks(range(len(entries)), [entry.name for entry in entries])
        axes.use_sticky_edges = False  # otherwise the axis ends at a bar's end
        axes.margins(x=0.1)
        axes.locator_params(axis="x", nbins=4)
    figure.supxlabel("normalised score", fontsize=9)
    return as_png(figure)


def _draw_bars(axes: Any, estimates: Sequence[Estimate], colours: Sequence[str]) -> None:
    for row, (found, colour) in enumerate(zip(estimates, colours, strict=True)):
        if found.low is not None and found.high is not None:
            axes.barh(row, found.high - found.low, left=found.low, height=0.6, color=colour, alpha=0.6)
        axes.plot([found.value, found.value], [row - 0.3, row + 0.3], color="black", linewidth=2)
    axes.set_ylim(-0.6, len(estimates) - 0.4)
    _tidy(axes, "x")


def _draw_bands(bands: Mapping[str, Band], style: Style, labels: Mapping[str, Any]) -> bytes:
    figure = new_figure(7, 4)
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    for name, band in bands.items():
        _draw_band(axes, band, style[name], name)
    axes.set(**labels)
    _tidy(axes)
    axes.legend(loc="best", fontsize=8, frameon=False)
    return as_png(figure)


def _draw_panels(
    curves: Sequence[tuple[str, str, Band]], style: Style, xlabel: str, *, timed: bool = False
) -> bytes:
    """Draw a panel per task with the curves of all names, and one legend for all panels."""
    tasks = sorted({task for task, _, _ in curves})
    columns = min(COLUMNS, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    figure = new_figure(max(6.5, 3.6 * columns), max(4.0, 2.6 * rows + 0.7))
    figure.set_layout_engine("constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, task in zip(grid, tasks, strict=False):
        shown = {name: band for of, name, band in curves if of == task}
        divisor = _mark_axis(axes, max(float(band.x[-1]) for band in shown.values()), timed)
        for name, band in shown.items():
            _draw_band(axes, replace(band, x=band.x / divisor), style[name], name)
        axes.set_title(task, fontsize=10)
        axes.locator_params(axis="both", nbins=5)
        axes.tick_params(labelsize=8)
        _tidy(axes)
    for axes in grid[len(tasks) :]:
        axes.set_visible(False)
    figure.supxlabel(xlabel, fontsize=9)
    figure.supylabel("return (IQM of seeds)", fontsize=9)
    lines = {
        label: line for axes in grid for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(lines.values(), lines, loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    return as_png(figure)


def _mark_axis(axes: Any, longest: float, timed: bool) -> float:
    """Label an axis of steps or updates, or of time in a unit that suits the longest curve; return the divisor of x."""
    from matplotlib.ticker import EngFormatter

    if not timed:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        return 1.0
    units = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
    unit = next((unit for unit, seconds in units.items() if longest >= 2 * seconds), "seconds")
    axes.set_xlabel(unit, fontsize=8)
    return units[unit]


def _draw_improvements(improvements: Sequence[Improvement], style: Style) -> bytes:
    """Draw a row per task and one for all tasks."""
    rows = [
        (label, found, style[entry.name]["color"])
        for entry in reversed(improvements)
        for label, found in [
            (f"{entry.name}: all tasks", entry.overall),
            *((f"{entry.name}: {task}", found) for task, found in reversed(list(entry.per_task.items()))),
        ]
    ]
    figure = new_figure(8, 1.0 + 0.34 * len(rows))
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    _draw_bars(axes, [found for _, found, _ in rows], [colour for _, _, colour in rows])
    axes.axvline(0.5, color="black", linewidth=1, linestyle=":")
    axes.set_yticks(range(len(rows)), [label for label, _, _ in rows], fontsize=8)
    axes.set(xlim=(-0.02, 1.02), xlabel="probability that a run beats a run of the baseline")
    return as_png(figure)


def _draw_band(axes: Any, band: Band, style: Mapping[str, Any], label: str) -> None:
    marker = {"marker": "o", "markersize": 4} if len(band.x) < 3 else {}
    axes.plot(band.x, band.value, label=label, linewidth=1.6, **style, **marker)
    if band.low is not None:
        axes.fill_between(band.x, band.low, band.high, color=style["color"], alpha=0.18, linewidth=0)


def _tidy(axes: Any, grid: str = "both") -> None:
    axes.grid(alpha=0.3, axis=grid)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
