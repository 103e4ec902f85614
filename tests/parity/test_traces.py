"""Every algorithm and switch learns what it learned when `traces.json` was written."""

import pytest
from traces import (
    CASES,
    FILE,
    TOLERANCE,
    UPDATES,
    environment_key,
    float32_trace,
    float64_trace,
    read_traces,
    written,
)

TRACES = read_traces()
REMEDY = "if the change is meant, write the traces anew with `make traces`"


@pytest.mark.parametrize("name", CASES)
def test_checksums_are_the_recorded_ones_on_every_machine(name: str) -> None:
    recorded, trace = TRACES["float64"][name], float64_trace(CASES[name])
    assert len(trace) == len(recorded) == UPDATES
    for update, (ours, theirs) in enumerate(zip(trace, recorded, strict=True)):
        assert ours == pytest.approx(theirs, rel=TOLERANCE, abs=0), f"update {update} of {name}: {REMEDY}"


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_the_recorded_ones_on_a_known_kind_of_machine(name: str) -> None:
    key = environment_key()
    if name not in TRACES["float32"].get(key, {}):
        pytest.skip(f"no float32 trace of {name} on {key}")
    recorded, trace = TRACES["float32"][key][name], float32_trace(CASES[name])
    assert len(trace) == len(recorded) == UPDATES
    changed = [update for update in range(UPDATES) if trace[update] != recorded[update]]
    assert not changed, f"{name} differs from update {changed[0]} on: {REMEDY}"
    assert len(set(trace)) == UPDATES, "an update changed nothing"


def test_the_file_is_as_it_is_written() -> None:
    """Writing it anew on another machine changes what has changed, and no other line."""
    assert FILE.read_text(encoding="utf-8") == written(TRACES)
    assert list(TRACES["float64"]) == list(CASES)


def test_every_switch_leaves_a_trace() -> None:
    """Two cases with the same numbers would be one case, and a switch that does nothing."""
    assert len({str(trace) for trace in TRACES["float64"].values()}) == len(CASES)
