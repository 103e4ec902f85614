"""`timeline.png`: when the samplers collected and what the learner did meanwhile."""

from pathlib import Path
from typing import Any, TypeAlias

from rl_training.experiment.files import write_bytes
from rl_training.experiment.logs.drawing import as_png, new_figure, silent_drawing, warn_not_drawn
from rl_training.runtime.timeline import CHECKPOINT, COLLECT, EVALUATE, UPDATE, Timeline

WAITS = "#e4e4e4"
OTHER = "#f6d9a8"
COLOURS = {UPDATE: "#2f6fb0", EVALUATE: "#e8862b", CHECKPOINT: "#4a9a4a"}
GROUP_COLOURS = ("#8060b8", "#c58bd0", "#4f9fa8", "#b5647a")
MAX_LABELS = 32
"""Lanes that have a label each; of more, some have none."""
MAX_NAMED_GROUPS = 8
"""Groups that the legend lists."""
LEGEND_COLUMNS = 8
Bars: TypeAlias = tuple[str, str, list[tuple[float, float]]]
"""What bars of a lane mean, their colour, and start and length of each."""


def draw_timeline(run_dir: Path, timeline: Timeline, title: str) -> None:
    """Write the picture, if there was an iteration; a failure is only a warning."""
    path = run_dir / "timeline.png"
    try:
        if timeline.seconds <= 0.0:
            return
        with silent_drawing():
            picture = as_png(timeline_figure(timeline, title))
        write_bytes(path, picture)
    except Exception as error:  # matplotlib, the disk
        warn_not_drawn(path, error)


def timeline_figure(timeline: Timeline, title: str) -> Any:
    """Return a figure with one lane for the learner and one for each sampler, or for all that one process collects."""
    lanes = _Lanes(timeline)
    if timeline.hosts:
        lanes.draw_processes()
    else:
        lanes.draw_one_process()
    rows = len(lanes.labels)
    figure = new_figure(11, min(1.6 + 0.42 * rows, 14))
    axes = figure.add_subplot()
    for row, bars in enumerate(lanes.bars):
        for _, colour, spans in bars:
            axes.broken_barh(spans, (row - 0.4, 0.8), facecolors=colour, linewidth=0)
    every = -(-rows // MAX_LABELS)
    shown = [row for row in range(rows) if row == 0 or (row - 1) % every == 0]
    axes.set_yticks(shown, [lanes.labels[row] for row in shown], fontsize=9 if rows <= 16 else 7)
    axes.set(xlim=(0, timeline.seconds), ylim=(rows - 0.5, -0.5))
    axes.set_xlabel(f"seconds; the last {timeline.iterations} iterations")
    axes.set_title(title, fontsize=11)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    _add_legend(figure, lanes.legend)
    return figure


class _Lanes:
    """Labels and coloured bars of the lanes, the first on top, and what the colours mean."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline, self.start = timeline, timeline.window[0]
        self.whole = [(0.0, timeline.seconds)]
        self.labels: list[str] = []
        self.bars: list[list[Bars]] = []
        self.legend: dict[str, str] = {}

    def draw_processes(self) -> None:
        """Draw the learner, and the samplers with the rollouts of their groups."""
        timeline = self.timeline
        rest: Bars = ("the rest", OTHER, self.whole)
        waits: Bars = ("waits", WAITS, self._spans(COLLECT))
        self._lane(f"learner, waits {timeline.share(COLLECT):.0%}", [rest, *self._of_learner(), waits])
        named = sum(map(len, timeline.hosts)) <= MAX_NAMED_GROUPS
        for host, groups in enumerate(timeline.hosts):
            found = timeline.rollouts_of(host)
            bars: list[Bars] = [("waits", WAITS, self.whole)]
            for place, group in enumerate(groups):
                name = f"rollout of group {group}" if named else "rollouts, in turn for each group"
                colour = GROUP_COLOURS[(group if named else place) % len(GROUP_COLOURS)]
                own = [self._rollout(start, end) for number, start, end in found if number == group]
                bars.append((name, colour, own))
            self._lane(f"sampler {host}, waits {timeline.waits(host):.0%}", bars)

    def draw_one_process(self) -> None:
        """Draw what a single process does in turn."""
        timeline = self.timeline
        learning = sum(timeline.share(name) for name in COLOURS)
        self._lane(f"learns {learning:.0%}", self._of_learner())
        if collected := self._spans(COLLECT):
            self._lane(f"collects {timeline.share(COLLECT):.0%}", [(COLLECT, GROUP_COLOURS[0], collected)])

    def _of_learner(self) -> list[Bars]:
        return [(name, colour, self._spans(name)) for name, colour in COLOURS.items()]

    def _spans(self, what: str) -> list[tuple[float, float]]:
        shown = self.timeline.shown()
        return [(start - self.start, end - start) for name, start, end in shown if name == what]

    def _rollout(self, start: float, end: float) -> tuple[float, float]:
        """Return a bar that is a little shorter, so that there is a gap between rollouts that follow each other."""
        return start - self.start, end - start - min((end - start) / 8, self.timeline.seconds / 1500)

    def _lane(self, label: str, bars: list[Bars]) -> None:
        self.labels.append(label)
        self.bars.append([bar for bar in bars if bar[2]])
        for name, colour, _ in self.bars[-1]:
            self.legend.setdefault(name, colour)


def _add_legend(figure: Any, legend: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=name) for name, colour in legend.items()]
    rows = -(-len(handles) // LEGEND_COLUMNS)
    figure.tight_layout(rect=(0, 0.22 * (rows + 0.4) / figure.get_figheight(), 1, 1))
    columns = -(-len(handles) // rows)
    figure.legend(handles=handles, loc="lower center", ncols=columns, fontsize=8, frameon=False)
