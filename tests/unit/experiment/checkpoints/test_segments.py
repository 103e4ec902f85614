"""Segments: each row is written once, and what is read back is exactly what was there."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints.format import restoring
from rl_training.experiment.checkpoints.segments import SegmentStore, _level, merged, prune_segments

CAPACITY = 10


class RingStorage:
    """The simplest `RowStorage`: named columns [capacity, ...], the newest rows overwrite the oldest."""

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        self.columns = dict(columns)
        self.capacity = len(next(iter(self.columns.values())))
        self.total_rows = self.kept_rows = 0

    def add(self, rows: Mapping[str, Tensor]) -> None:
        """Append rows [k, ...]."""
        count = len(next(iter(rows.values())))
        self.restore_rows(self.total_rows, rows, self.total_rows + count)

    def read_rows(self, start: int, stop: int) -> dict[str, Tensor]:
        """Return the rows by absolute number, copied."""
        index = torch.arange(start, stop) % self.capacity
        return {name: column[index] for name, column in self.columns.items()}

    def restore_rows(self, start: int, rows: Mapping[str, Tensor], total_rows: int) -> None:
        """Write rows at their absolute numbers, and count up to `total_rows`."""
        index = torch.arange(start, total_rows) % self.capacity
        for name, column in self.columns.items():
            if rows[name].shape[1:] != column.shape[1:] or rows[name].dtype != column.dtype:
                raise ValueError(f"column '{name}' has another shape or type")
            column[index] = rows[name]
        self.total_rows = total_rows
        self.kept_rows = min(total_rows, self.capacity)


def ring(capacity: int = CAPACITY) -> RingStorage:
    return RingStorage({"obs": torch.zeros(capacity, 3), "action": torch.zeros(capacity, dtype=torch.int64)})


def rows(start: int, stop: int) -> dict[str, torch.Tensor]:
    """Rows whose content tells their number."""
    numbers = torch.arange(start, stop)
    return {"obs": numbers[:, None] + torch.tensor([0.0, 0.25, 0.5]), "action": numbers * 7}


def add(storage: RingStorage, count: int) -> None:
    storage.add(rows(storage.total_rows, storage.total_rows + count))


def assert_same(found: RingStorage, wanted: RingStorage) -> None:
    assert (found.total_rows, found.kept_rows) == (wanted.total_rows, wanted.kept_rows)
    first = wanted.total_rows - wanted.kept_rows
    expected = rows(first, wanted.total_rows)
    for storage in (found, wanted):
        for name, column in storage.read_rows(first, wanted.total_rows).items():
            assert torch.equal(column, expected[name]), name


def restored(folder: Path, listed: list[dict], total_rows: int) -> tuple[RingStorage, SegmentStore]:
    storage, store = ring(), SegmentStore(folder)
    kept_rows = min(total_rows, storage.capacity)
    store.restore(storage, json.loads(json.dumps(listed)), total_rows, kept_rows)  # as a manifest carries it
    return storage, store


def files(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def test_a_ring_keeps_the_newest_rows():
    storage = ring()
    add(storage, 7)
    assert (storage.total_rows, storage.kept_rows) == (7, 7)
    add(storage, 7)
    assert (storage.total_rows, storage.kept_rows) == (14, 10)
    for name, column in storage.read_rows(4, 14).items():
        assert torch.equal(column, rows(4, 14)[name])


def test_rows_that_are_read_are_copies():
    storage = ring()
    add(storage, 3)
    storage.read_rows(0, 3)["obs"].fill_(9)
    assert torch.equal(storage.read_rows(0, 3)["obs"], rows(0, 3)["obs"])


def test_more_rows_at_once_than_the_ring_holds():
    """The newest must win, whatever order an indexed assignment works in."""
    storage = ring()
    add(storage, 25)
    assert (storage.total_rows, storage.kept_rows) == (25, 10)
    for name, column in storage.read_rows(15, 25).items():
        assert torch.equal(column, rows(15, 25)[name])


def test_only_what_is_new_is_written(tmp_path):
    storage, store = ring(1000), SegmentStore(tmp_path / "replay")
    add(storage, 600)
    store.append(storage)
    (large,) = files(store.folder).values()
    times = {path.name: path.stat().st_mtime_ns for path in store.folder.iterdir()}
    add(storage, 6)
    listed = store.append(storage)
    sizes = files(store.folder)
    assert [entry["name"] for entry in listed] == ["segment_0_600.safetensors", "segment_600_606.safetensors"]
    row = 3 * 4 + 8
    assert sizes["segment_600_606.safetensors"] < 6 * row + 300
    assert large > 600 * row
    for name, written in times.items():
        assert (store.folder / name).stat().st_mtime_ns == written, "an old segment was written again"


def test_many_rows_at_once_are_written_in_slices(tmp_path, monkeypatch):
    from rl_training.experiment.checkpoints import segments

    monkeypatch.setattr(segments, "MAX_ROWS", 100)
    storage, store = ring(1000), SegmentStore(tmp_path)
    add(storage, 250)
    listed = store.append(storage)
    assert [(entry["start"], entry["stop"]) for entry in listed] == [(0, 100), (100, 200), (200, 250)]
    found = ring(1000)
    SegmentStore(tmp_path).restore(found, listed, 250, 250)
    assert_same(found, storage)


def test_the_bytes_of_a_long_life_are_proportional_to_its_rows(tmp_path, monkeypatch):
    from rl_training.experiment.checkpoints import segments

    written = []
    real = segments.write_tensors

    def counting(path, tensors):
        size, digest = real(path, tensors)
        written.append(size)
        return size, digest

    monkeypatch.setattr(segments, "write_tensors", counting)
    storage, store = ring(1000), SegmentStore(tmp_path)
    for _ in range(30):
        add(storage, 100)
        store.append(storage)
    assert len(written) == 30
    assert sum(written) < 2 * 30 * (
        100 * 20 + 300
    )  # each row alone, and once more together with its neighbours


SIZES = {
    "equal": lambda number: 10,
    "growing": lambda number: 1 + number // 10,
    "small and large": lambda number: (3, 40)[number % 2],
    "a best one in between": lambda number: (1, 29, 30)[number % 3],
    "one row each": lambda number: 1,
    "longer than a file": lambda number: 300 if number % 25 == 0 else 5,
}


@pytest.mark.parametrize("capacity", [100_000, 700], ids=["growing", "full"])
@pytest.mark.parametrize("case", SIZES)
def test_many_checkpoints_have_short_lists_and_write_little(tmp_path, monkeypatch, case, capacity):
    from rl_training.experiment.checkpoints import segments

    monkeypatch.setattr(segments, "MAX_ROWS", 256)
    monkeypatch.setattr("os.fsync", lambda _: None)  # without waiting for the disk
    levels = 3  # files of 128 rows stay; smaller ones have at least 16, 2 or 1
    storage, store = ring(capacity), SegmentStore(tmp_path)
    checkpoints = 500 if case == "equal" else 120
    for number in range(checkpoints):
        add(storage, SIZES[case](number))
        listed = store.append(storage)
        if number % 20 == 0:
            prune_segments(tmp_path, [listed])
        assert len(listed) <= 2 * storage.kept_rows / 256 + levels * 7 + 2
    rows_written = (store.bytes_written - 200 * checkpoints * levels) / 20
    assert rows_written <= (levels + 2) * storage.total_rows
    found = ring(capacity)
    SegmentStore(tmp_path).restore(found, listed, storage.total_rows, storage.kept_rows)
    assert_same(found, storage)


@given(st.lists(st.integers(1, 600), max_size=60))
def test_merging_keeps_every_row_once_and_comes_to_rest(sizes):
    from rl_training.experiment.checkpoints import segments

    stops = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    spans = list(zip([0, *stops], stops, strict=False))
    found = merged(spans)
    assert [stop for _, stop in found[:-1]] == [start for start, _ in found[1:]]
    assert (found[0][0], found[-1][1]) == (0, stops[-1]) if sizes else found == []
    assert all(0 < stop - start <= segments.MAX_ROWS for start, stop in found)
    assert merged(found) == found
    levels = [_level(span) for span in found]
    assert levels == sorted(levels)
    assert all(levels.count(level) < 8 for level in set(levels) - {0})


def test_a_small_file_is_not_stuck_before_large_ones(tmp_path):
    storage, store = ring(1000), SegmentStore(tmp_path)
    for count in (3, 100, 5):
        add(storage, count)
        listed = store.append(storage)
    assert [(entry["start"], entry["stop"]) for entry in listed] == [(0, 103), (103, 108)]


def test_a_kill_between_the_files_and_the_manifest_leaves_what_is_needed(tmp_path):
    """The eighth save merges; its manifest never came, so the seventh is gone on from, to the same files."""
    storage, store = ring(100), SegmentStore(tmp_path)
    for _ in range(7):
        add(storage, 4)
        listed = store.append(storage)
    add(storage, 4)
    merged_list = store.append(storage)
    assert len(merged_list) == 1
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    found, again = ring(100), SegmentStore(tmp_path)
    prune_segments(tmp_path, [listed])  # as a resume does
    assert set(files(tmp_path)) == {entry["name"] for entry in listed}
    again.restore(found, json.loads(json.dumps(listed)), 28, 28)
    add(found, 4)
    assert again.append(found) == merged_list
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("killed_after", [1, 7, 8, 20, 39])
@pytest.mark.parametrize("capacity", [100_000, 90])
def test_a_resumed_run_makes_the_same_files(tmp_path, monkeypatch, capacity, killed_after):
    from rl_training.experiment.checkpoints import segments

    monkeypatch.setattr(segments, "MAX_ROWS", 64)
    monkeypatch.setattr("os.fsync", lambda _: None)  # without waiting for the disk

    def life(folder: Path, killed_after: int | None) -> list[dict]:
        storage, store = ring(capacity), SegmentStore(folder)
        listed = []
        for number in range(40):
            if number == killed_after:
                again, store = ring(capacity), SegmentStore(folder)
                store.restore(again, json.loads(json.dumps(listed)), storage.total_rows, storage.kept_rows)
                storage = again
            add(storage, 1 + number % 5)
            listed = store.append(storage)
            prune_segments(folder, [listed])
        return listed

    left_alone, resumed = life(tmp_path / "one", None), life(tmp_path / "other", killed_after)
    assert resumed == left_alone
    assert files(tmp_path / "other") == files(tmp_path / "one")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "problem"), [(Path.unlink, "was deleted"), (cut, "has .* bytes instead of")]
)
def test_a_file_that_vanished_is_written_again_from_memory(tmp_path, damage, problem):
    storage, store = ring(), SegmentStore(tmp_path)
    for _ in range(2):
        add(storage, 4)
        listed = store.append(storage)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    damage(tmp_path / "segment_0_4.safetensors")
    with pytest.warns(
        UserWarning, match=f"segment_0_4.safetensors {problem}.*writing its rows again from memory"
    ):
        assert store.append(storage) == listed
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert store.append(storage) == listed  # and nothing more is said


def test_rows_that_the_ring_has_forgotten_do_not_come_back(tmp_path):
    storage, store = ring(), SegmentStore(tmp_path)
    for _ in range(2):
        add(storage, 4)
        store.append(storage)
    add(storage, 4)  # rows 0 and 1 are overwritten
    (tmp_path / "segment_0_4.safetensors").unlink()
    with pytest.warns(UserWarning, match="segment_0_4.safetensors was deleted"):
        listed = store.append(storage)
    assert [(entry["start"], entry["stop"]) for entry in listed] == [(2, 4), (4, 8), (8, 12)]
    assert_same(restored(tmp_path, listed, 12)[0], storage)


def test_nothing_new_writes_nothing(tmp_path):
    storage, store = ring(), SegmentStore(tmp_path / "replay")
    assert store.append(storage) == []
    assert not (tmp_path / "replay").exists()
    add(storage, 4)
    first = store.append(storage)
    assert store.append(storage) == first
    assert len(files(store.folder)) == 1


def test_what_the_ring_has_forgotten_is_not_listed(tmp_path):
    storage, store = ring(), SegmentStore(tmp_path)
    for _ in range(5):
        add(storage, 4)
        listed = store.append(storage)
    assert [(entry["start"], entry["stop"]) for entry in listed] == [(8, 12), (12, 16), (16, 20)]


def test_rows_that_were_overwritten_before_any_checkpoint_are_skipped(tmp_path):
    storage, store = ring(), SegmentStore(tmp_path)
    add(storage, 4)
    store.append(storage)
    add(storage, 30)
    listed = store.append(storage)
    assert [(entry["start"], entry["stop"]) for entry in listed] == [(24, 34)]
    found, _ = restored(tmp_path, listed, 34)
    assert_same(found, storage)


@pytest.mark.parametrize("chunks", [[3], [10], [4, 4, 4], [9, 9, 9], [1] * 23, [25], [10, 10], [7, 13, 2]])
def test_what_is_restored_is_what_was_there(tmp_path, chunks):
    storage, store = ring(), SegmentStore(tmp_path)
    for count in chunks:
        add(storage, count)
        listed = store.append(storage)
    found, again = restored(tmp_path, listed, storage.total_rows)
    assert_same(found, storage)
    for other, other_store in ((storage, store), (found, again)):  # and both go on alike
        add(other, 5)
        listed = other_store.append(other)
    assert again.segments == store.segments
    assert_same(restored(tmp_path, listed, storage.total_rows)[0], storage)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(st.integers(1, 14), st.sampled_from(["add", "save", "resume"])), max_size=14),
)
def test_any_life_of_adding_saving_and_resuming(tmp_path, steps):
    folder = tmp_path / "replay"
    shutil.rmtree(folder, ignore_errors=True)
    storage, store = ring(), SegmentStore(folder)
    listed, saved_rows = [], 0
    for count, action in steps:
        if action == "add":
            add(storage, count)
        elif action == "save":
            listed, saved_rows = store.append(storage), storage.total_rows
            prune_segments(store.folder, [listed])
        else:  # killed: what was not saved is gone, and is added again
            total = storage.total_rows
            storage, store = restored(folder, listed, saved_rows)
            add(storage, total - saved_rows) if total > saved_rows else None
    assert storage.total_rows == sum(count for count, action in steps if action == "add")
    first = storage.total_rows - storage.kept_rows
    for name, column in storage.read_rows(first, storage.total_rows).items():
        assert torch.equal(column, rows(first, storage.total_rows)[name])


def test_a_segment_is_deleted_when_no_kept_manifest_lists_it(tmp_path):
    storage, store = ring(), SegmentStore(tmp_path)
    manifests = []
    for _ in range(6):
        add(storage, 4)
        manifests.append(store.append(storage))
    prune_segments(store.folder, manifests)
    assert len(files(tmp_path)) == 6
    prune_segments(store.folder, manifests[-2:])
    assert set(files(tmp_path)) == {entry["name"] for listed in manifests[-2:] for entry in listed}
    assert "segment_0_4.safetensors" not in files(tmp_path)
    assert_same(restored(tmp_path, manifests[-1], 24)[0], storage)
    prune_segments(store.folder, [])
    assert files(tmp_path) == {}


def test_pruning_leaves_other_files_and_a_missing_folder_alone(tmp_path):
    prune_segments(tmp_path / "none", [])
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    prune_segments(tmp_path, [])
    assert set(files(tmp_path)) == {"notes.txt"}


@pytest.fixture
def saved(tmp_path):
    storage, store = ring(), SegmentStore(tmp_path)
    for _ in range(3):
        add(storage, 3)
        listed = store.append(storage)
    return tmp_path, listed


def refused(folder: Path, listed: list[dict], total_rows: int = 9) -> str:
    with pytest.raises(UserError) as caught, restoring("step_9"):  # as a run restores everything
        restored(folder, listed, total_rows)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def test_a_missing_segment_is_named(saved):
    folder, listed = saved
    (folder / listed[1]["name"]).unlink()
    assert "segment_3_6.safetensors" in refused(folder, listed)


def test_a_truncated_segment_is_named(saved):
    folder, listed = saved
    path = folder / listed[2]["name"]
    path.write_bytes(path.read_bytes()[:-1])
    assert "segment_6_9.safetensors is damaged: it has" in refused(folder, listed)


def test_a_flipped_bit_is_named(saved):
    folder, listed = saved
    path = folder / listed[0]["name"]
    blob = bytearray(path.read_bytes())
    blob[-3] ^= 4
    path.write_bytes(blob)
    assert "segment_0_3.safetensors is damaged" in refused(folder, listed)


def test_a_link_is_refused(saved):
    folder, listed = saved
    path = folder / listed[0]["name"]
    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")
    assert "is a symbolic link" in refused(folder, listed)


def test_a_gap_is_refused(saved):
    folder, listed = saved
    assert "rows 3 to 6 are missing" in refused(folder, [listed[0], listed[2]])


def test_segments_out_of_order_or_twice_are_refused(saved):
    folder, listed = saved
    refused(folder, [listed[1], listed[0], listed[2]])
    refused(folder, [listed[0], listed[0], listed[1], listed[2]])


def test_a_list_that_ends_before_the_rows_do_is_refused(saved):
    """9 rows are promised and 6 are listed: training on would use rows of zeros."""
    folder, listed = saved
    refused(folder, listed[:2])
    refused(folder, [])


def test_a_list_that_begins_too_late_is_refused(saved):
    """All 9 rows fit into the ring, so the first 3 must be there."""
    folder, listed = saved
    refused(folder, listed[1:])


def test_a_list_that_ends_after_the_rows_do_is_refused(saved):
    folder, listed = saved
    refused(folder, listed, total_rows=7)


FORGED = {
    "outside": {"name": "../segment_0_3.safetensors"},
    "absolute": {"name": "/etc/passwd"},
    "other rows than the name says": {"start": 1},
    "no name": {"name": ""},
    "name that is a number": {"name": 3},
    "start that is text": {"start": "0"},
    "stop that is nothing": {"stop": None},
    "unknown key": {"code": "rm"},
    "backwards": {"name": "segment_3_0.safetensors", "start": 3, "stop": 0},
    "empty": {"name": "segment_0_0.safetensors", "start": 0, "stop": 0},
    "end of the line": {"name": "segment_0_3.safetensors\n"},
    "digits of another script": {"name": "segment_٠_٣.safetensors"},
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_entry_is_refused(saved, case):
    folder, listed = saved
    refused(folder, [listed[0] | FORGED[case], *listed[1:]])


def test_an_entry_without_a_hash_is_refused(saved):
    folder, listed = saved
    entry = dict(listed[0])
    del entry["sha256"]
    refused(folder, [entry, *listed[1:]])


@pytest.mark.parametrize(
    "forged",
    [
        {
            "obs": torch.zeros(2, 3),
            "action": torch.zeros(2, dtype=torch.int64),
        },  # fewer rows than the name says
        {"obs": torch.zeros(1, 3), "action": torch.zeros(1, dtype=torch.int64)},  # one row would be broadcast
        {"obs": torch.zeros(4, 3), "action": torch.zeros(4, dtype=torch.int64)},  # more
        {"obs": torch.zeros(3, 2), "action": torch.zeros(3, dtype=torch.int64)},  # narrower
        {"obs": torch.zeros(3, 1), "action": torch.zeros(3, dtype=torch.int64)},  # would be broadcast
        {"obs": torch.zeros(3, 3)},  # without a column
        {"obs": torch.zeros(3, 3, dtype=torch.float64), "action": torch.zeros(3, dtype=torch.int64)},
        {"obs": torch.zeros(3, 3), "action": torch.full((3,), 0.5)},  # would be rounded
    ],
)
def test_a_forged_file_with_the_right_hash_is_refused(saved, forged):
    import hashlib

    from safetensors.torch import save

    folder, listed = saved
    blob = save(forged)
    (folder / listed[0]["name"]).write_bytes(blob)
    entry = listed[0] | {"size": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}
    refused(folder, [entry, *listed[1:]])
