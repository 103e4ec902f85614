"""The picture of a timeline: its lanes, labels and colours, from one sampler to very many."""

import time
from pathlib import Path

import pytest

from rl_training.experiment.logs.timeline_picture import MAX_LABELS, draw_timeline, timeline_figure
from rl_training.runtime.timeline import COLLECT, UPDATE, Span, Timeline


def timeline_of(samplers: int, groups_each: int = 1, iterations: int = 40) -> Timeline:
    """Return iterations of one second: all samplers collect for 0.4 of them, and the learner updates afterwards."""
    found = Timeline()
    found.hosts = [range(host * groups_each, (host + 1) * groups_each) for host in range(samplers)]
    for number in range(iterations):
        found._begun.append(float(number))
        found.learner.extend([Span(COLLECT, number, number + 0.4), Span(UPDATE, number + 0.4, number + 1.0)])
        each = 0.4 / groups_each
        for groups in found.hosts:
            for place, group in enumerate(groups):
                start = number + place * each
                found.rollouts.append((group, start, start + each))
    return found


def texts(figure) -> tuple[list[str], list[str]]:
    (axes,) = figure.axes
    (legend,) = figure.legends
    return [each.get_text() for each in axes.get_yticklabels()], [
        each.get_text() for each in legend.get_texts()
    ]


@pytest.mark.parametrize("samplers", [1, 2, 16, 64, 400])
def test_every_sampler_has_a_lane(samplers):
    figure = timeline_figure(timeline_of(samplers), "a run")
    (axes,) = figure.axes
    labels, _ = texts(figure)
    assert axes.get_ylim() == (samplers + 0.5, -0.5)
    assert labels[:2] == ["learner, waits 40%", "sampler 0, waits 60%"]
    assert len(labels) == samplers + 1 if samplers < MAX_LABELS else len(labels) <= MAX_LABELS + 1
    lanes = {round(box.get_extents().y0 + 0.4) for part in axes.collections for box in part.get_paths()}
    assert lanes == set(range(samplers + 1))
    assert axes.get_xlabel() == "seconds; the last 40 iterations"
    assert figure.get_figheight() <= 14


def test_the_legend_explains_every_colour():
    _, few = texts(timeline_figure(timeline_of(2, groups_each=2), "a run"))
    assert few == ["the rest", "update", "waits", *(f"rollout of group {group}" for group in range(4))]
    _, many = texts(timeline_figure(timeline_of(6, groups_each=2), "a run"))
    assert many == ["the rest", "update", "waits", "rollouts, in turn for each group"]


def test_one_process_has_two_lanes():
    timeline = timeline_of(0)
    assert texts(timeline_figure(timeline, "a run")) == (
        ["learns 60%", "collects 40%"],
        ["update", "collect"],
    )
    timeline.learner.clear()
    timeline.learner.append(Span(UPDATE, 0.0, 1.0))
    assert texts(timeline_figure(timeline, "a run"))[0] == ["learns 100%"]


def test_many_spans_are_drawn_in_a_short_time(tmp_path):
    started = time.monotonic()
    draw_timeline(tmp_path, timeline_of(64, groups_each=7, iterations=44), "a run")
    assert time.monotonic() - started < 20
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_an_iteration_has_no_picture(tmp_path):
    draw_timeline(tmp_path, Timeline(), "a run")
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_cannot_be_written_is_a_warning(tmp_path: Path):
    with pytest.warns(UserWarning, match="timeline.png was not drawn"):
        draw_timeline(tmp_path / "missing", timeline_of(1), "a run")
