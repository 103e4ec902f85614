"""Replay data beside the checkpoints: written once, kept as long as needed, read back exactly."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from records import step_arrays

from rl_training.core.errors import UserError
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.experiment.checkpoints.replay import ReplayFiles, load_replay, verify_replay

ENVS = 2


def make_buffer(capacity: int = 12, **settings: Any) -> ReplayBuffer:
    return ReplayBuffer(
        capacity=capacity, num_envs=ENVS, obs_shape=(3,), action_shape=(), action_dtype=np.int64, **settings
    )


def record(buffer: ReplayBuffer, steps: int, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        buffer.record_action(
            rng.standard_normal((ENVS, 3)).astype(np.float32), rng.integers(0, 4, ENVS).astype(np.int64)
        )
        buffer.record_outcome(
            step_arrays(
                rng.standard_normal((ENVS, 3)).astype(np.float32),
                rng.standard_normal(ENVS),
                terminated=rng.random(ENVS) < 0.2,
                truncated=rng.random(ENVS) < 0.1,
                final_obs=rng.standard_normal((ENVS, 3)).astype(np.float32),
            )
        )


def checkpoint(folder: Path, name: str, listed: Any) -> Path:
    """What a checkpoint looks like to the replay files: a folder with a manifest."""
    (folder / name).mkdir(parents=True)
    (folder / name / "manifest.json").write_text(json.dumps({"facts": {"replay": listed}}))
    return folder / name


def segments(folder: Path) -> set[str]:
    return {path.name for path in (folder / "replay").iterdir()}


def assert_same(one: ReplayBuffer, other: ReplayBuffer) -> None:
    assert (one.total_rows, one.kept_rows) == (other.total_rows, other.kept_rows)
    first = one.total_rows - one.kept_rows
    rows, others = one.read_rows(first, one.total_rows), other.read_rows(first, one.total_rows)
    for name, column in rows.items():
        assert torch.equal(column, others[name]), name


@pytest.mark.parametrize("settings", [{}, {"n_step": 3}, {"prioritized": True}])
@pytest.mark.parametrize("steps", [3, 6, 20])
def test_a_buffer_comes_back_row_by_row_and_draws_alike(
    tmp_path: Path, steps: int, settings: dict[str, Any]
) -> None:
    buffer, fresh = make_buffer(**settings), make_buffer(**settings)
    record(buffer, steps)
    if buffer.prioritized:
        buffer.update_priorities(torch.arange(len(buffer)), torch.linspace(0.1, 5.0, len(buffer)))
    listed = ReplayFiles(tmp_path, buffer.storages).save("step_1")
    listed = json.loads(json.dumps(listed))  # as a manifest carries it
    load_replay(fresh.storages, tmp_path / "step_1", listed)
    fresh.load_state_dict(buffer.state_dict())
    assert_same(buffer, fresh)
    record(buffer, 4, seed=1)
    record(fresh, 4, seed=1)
    assert_same(buffer, fresh)
    draws = [each.sample(32, np.random.default_rng(2)) for each in (buffer, fresh)]
    for name in ("obs", "actions", "rewards", "discounts", "next_obs", "indices"):
        assert torch.equal(getattr(draws[0], name), getattr(draws[1], name)), name
    if buffer.prioritized:
        assert torch.equal(draws[0].weights, draws[1].weights)


def test_every_save_writes_only_what_is_new(tmp_path: Path) -> None:
    buffer = make_buffer()
    files = ReplayFiles(tmp_path, buffer.storages)
    record(buffer, 2)
    files.save("step_1")
    assert files.bytes_written == (tmp_path / "replay" / "segment_0_4.safetensors").stat().st_size
    written = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "replay").iterdir()}
    record(buffer, 3, seed=1)
    listed = files.save("step_2")
    assert segments(tmp_path) == {"segment_0_4.safetensors", "segment_4_10.safetensors"}
    assert [entry["name"] for entry in listed["transitions"]["segments"]] == [
        "segment_0_4.safetensors",
        "segment_4_10.safetensors",
    ]
    assert (listed["transitions"]["total_rows"], listed["transitions"]["kept_rows"]) == (10, 10)
    unchanged = tmp_path / "replay" / "segment_0_4.safetensors"
    assert unchanged.stat().st_mtime_ns == written[unchanged.name]
    assert files.save("step_3") == listed  # nothing new
    assert files.bytes_written == sum(path.stat().st_size for path in (tmp_path / "replay").iterdir())


def test_pruning_keeps_what_a_kept_checkpoint_needs_and_nothing_else(tmp_path: Path) -> None:
    buffer = make_buffer(capacity=8)
    files = ReplayFiles(tmp_path, buffer.storages)
    for step in range(1, 5):
        record(buffer, 2, seed=step)  # four rows each: a checkpoint needs two segments
        checkpoint(tmp_path, f"step_{step}", files.save(f"step_{step}"))
    names = [f"segment_{start}_{start + 4}.safetensors" for start in (0, 4, 8, 12)]
    files.prune()
    assert segments(tmp_path) == set(names)
    for step in (1, 3):
        (tmp_path / f"step_{step}" / "manifest.json").unlink()
        (tmp_path / f"step_{step}").rmdir()
    (tmp_path / "replay" / ".segment_1_2.safetensors.tmp").write_text("left behind")
    files.prune()  # left: the second, with rows 0 to 8, and the fourth, with rows 8 to 16
    assert segments(tmp_path) == set(names)
    (tmp_path / "step_2" / "manifest.json").unlink()
    (tmp_path / "step_2").rmdir()
    files.prune()
    assert segments(tmp_path) == set(names[2:])


def test_pruning_in_a_new_process_reads_the_manifests(tmp_path: Path) -> None:
    buffer = make_buffer(capacity=8)
    files = ReplayFiles(tmp_path, buffer.storages)
    for step in range(1, 4):
        record(buffer, 2, seed=step)
        listed = files.save(f"step_{step}")
        if step != 1:
            checkpoint(tmp_path, f"step_{step}", listed)
    (tmp_path / "replay" / "segment_90_99.safetensors").write_text("of no checkpoint")
    ReplayFiles(tmp_path, make_buffer(capacity=8).storages).prune()
    assert segments(tmp_path) == {f"segment_{start}_{start + 4}.safetensors" for start in (0, 4, 8)}


def test_a_damaged_manifest_holds_nothing_back(tmp_path: Path) -> None:
    buffer = make_buffer()
    record(buffer, 2)
    checkpoint(tmp_path, "step_1", ReplayFiles(tmp_path, buffer.storages).save("step_1"))
    (tmp_path / "step_1" / "manifest.json").write_text("{")
    ReplayFiles(tmp_path, buffer.storages).prune()
    assert segments(tmp_path) == set()


def test_after_a_restore_the_files_go_on_where_they_were(tmp_path: Path) -> None:
    buffer, fresh = make_buffer(), make_buffer()
    record(buffer, 3)
    listed = ReplayFiles(tmp_path, buffer.storages).save("step_1")
    files = ReplayFiles(tmp_path, fresh.storages)
    load_replay(fresh.storages, tmp_path / "step_1", listed)
    files.continue_from(listed)
    record(fresh, 1, seed=1)
    names = [entry["name"] for entry in files.save("step_2")["transitions"]["segments"]]
    assert names == ["segment_0_6.safetensors", "segment_6_8.safetensors"]


def test_a_run_that_starts_from_another_writes_all_rows_to_its_own_folder(tmp_path: Path) -> None:
    buffer, fresh = make_buffer(), make_buffer()
    record(buffer, 3)
    listed = ReplayFiles(tmp_path / "old", buffer.storages).save("step_1")
    files = ReplayFiles(tmp_path / "new", fresh.storages)
    load_replay(fresh.storages, tmp_path / "old" / "step_1", listed)
    assert_same(buffer, fresh)
    names = [entry["name"] for entry in files.save("step_2")["transitions"]["segments"]]
    assert names == ["segment_0_6.safetensors"]
    assert segments(tmp_path / "new") == set(names)
    assert segments(tmp_path / "old") == set(names)


def test_frames_are_saved_beside_the_transitions(tmp_path: Path) -> None:
    def framed() -> ReplayBuffer:
        return ReplayBuffer(
            capacity=12,
            num_envs=1,
            obs_shape=(2, 3),
            obs_dtype=np.uint8,
            action_shape=(),
            action_dtype=np.int64,
            frame_stack=2,
        )

    buffer, fresh = framed(), framed()
    frames = np.arange(60, dtype=np.uint8).reshape(20, 3)
    for step in range(6):
        buffer.record_action(frames[None, step : step + 2].copy(), np.zeros(1, np.int64))
        buffer.record_outcome(step_arrays(frames[None, step + 1 : step + 3].copy(), np.zeros(1)))
    listed = ReplayFiles(tmp_path, buffer.storages).save("step_1")
    assert set(listed) == {"transitions", "frames"}
    assert any(name.startswith("segment_frames_") for name in segments(tmp_path))
    load_replay(fresh.storages, tmp_path / "step_1", listed)
    fresh.load_state_dict(buffer.state_dict())
    draws = [each.sample(16, np.random.default_rng(0)) for each in (buffer, fresh)]
    assert torch.equal(draws[0].obs, draws[1].obs)
    assert torch.equal(draws[0].next_obs, draws[1].next_obs)
    with pytest.raises(UserError, match="has no frames for the replay buffer; use another checkpoint"):
        load_replay(framed().storages, tmp_path / "step_1", {"transitions": listed["transitions"]})


def test_damaged_replay_data_is_named_and_what_is_whole_is_told(tmp_path: Path) -> None:
    buffer = make_buffer()
    record(buffer, 3)
    listed = ReplayFiles(tmp_path, buffer.storages).save("step_1")
    saved = checkpoint(tmp_path, "step_1", listed)
    verify_replay(saved, listed)
    segment = tmp_path / "replay" / "segment_0_6.safetensors"
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(bytes(content))
    with pytest.raises(UserError, match=r"segment_0_6.*; the agent in .*step_1 is intact"):
        verify_replay(saved, listed)
    with pytest.raises(UserError, match="segment_0_6"):
        load_replay(make_buffer().storages, saved, listed)
    segment.unlink()
    with pytest.raises(UserError, match=r"segment_0_6.*; the agent in .*step_1 is intact"):
        verify_replay(saved, listed)


def test_an_algorithm_without_replay_has_no_files(tmp_path: Path) -> None:
    files = ReplayFiles(tmp_path, {})
    assert files.save("step_1") == {}
    load_replay({}, tmp_path / "step_1", {})
    files.continue_from({})
    files.prune()
    assert list(tmp_path.iterdir()) == []
