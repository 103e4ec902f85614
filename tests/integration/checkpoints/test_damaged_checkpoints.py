"""Damaged or foreign checkpoints are found before anything is done with them, and named in one sentence.

A run is more than its newest checkpoint: named by its folder, it goes on from the newest whole one.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from tiny_envs import AnySpaces

import rl_training
from rl_training.algorithms import PPO
from rl_training.core.errors import UserError
from rl_training.core.spaces.layout import space_text
from rl_training.experiment.checkpoints.format import manifest_hash
from rl_training.experiment.logs.sinks import WALL_CLOCK
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from support.callbacks import StopAtCollect

pytestmark = pytest.mark.fault

shows_warnings = pytest.mark.filterwarnings("always::UserWarning")  # as a terminal does


@pytest.fixture(scope="module")
def whole_and_paused(tmp_path_factory):
    """One run to its end at 128, and one that was paused at 64, that every test damages a copy of."""
    from rl_training.algorithms.ppo import PPOConfig
    from rl_training.config import TrainConfig

    config = TrainConfig(
        algo="ppo", env_id="tiny_envs:Lottery-v0", output_dir=str(tmp_path_factory.mktemp("pristine")),
        total_timesteps=128, num_envs=2, num_eval_episodes=1, checkpoint_every_timesteps=32, keep_checkpoints=9,
        log_every_timesteps=32,
        algorithm=PPOConfig(
            num_steps=16, batch_size=16, update_epochs=1, hidden_sizes=(8,), learning_rate=1e-2
        ),
    )  # fmt: skip
    return train(config).run_dir, train(config, callbacks=[StopAtCollect(64)]).run_dir


@pytest.fixture
def whole(whole_and_paused) -> Path:
    return whole_and_paused[0]


@pytest.fixture
def run_dir(whole_and_paused, tmp_path) -> Path:
    return Path(shutil.copytree(whole_and_paused[1], tmp_path / "run"))


def last(run_dir: Path) -> Path:
    return run_dir / "checkpoints" / "step_64"


def content(folder: Path) -> dict[Path, bytes]:
    """Every file but the lock, which only says who looked last."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def assert_same_run(run_dir: Path, other: Path, rows) -> None:
    """The same model and the same rows, but for the clock's."""
    models = [folder / "checkpoints" / "step_128" / "model.safetensors" for folder in (run_dir, other)]
    assert models[0].read_bytes() == models[1].read_bytes()
    tables = [rows(folder / "metrics.jsonl") for folder in (run_dir, other)]
    for table in tables:
        for row in table:
            for name in WALL_CLOCK:
                row.pop(name, None)
    assert tables[0] == tables[1]
    assert (run_dir / "evaluations.jsonl").read_bytes() == (other / "evaluations.jsonl").read_bytes()


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def flip_a_bit(folder: Path) -> None:
    path = folder / "model.safetensors"
    blob = bytearray(path.read_bytes())
    blob[-5] ^= 1
    path.write_bytes(blob)


def flip_a_bit_of_the_moments(folder: Path) -> None:
    path = folder / "optimizer.safetensors"
    blob = bytearray(path.read_bytes())
    blob[len(blob) // 2] ^= 128
    path.write_bytes(blob)


def edit(folder: Path, change) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    change(manifest)
    sealed = manifest | {"sha256": manifest_hash(manifest)}
    path.write_text(json.dumps(sealed), encoding="utf-8")


DAMAGES = {
    "truncated": (truncate, ["model.safetensors is damaged: it has", "bytes instead of"]),
    "flipped bit": (flip_a_bit, ["model.safetensors is damaged"]),
    "flipped bit of the optimizer": (flip_a_bit_of_the_moments, ["optimizer.safetensors is damaged"]),
    "missing file": (
        lambda folder: (folder / "model.safetensors").unlink(),
        ["cannot read", "model.safetensors: No such file"],
    ),
    "missing manifest": (
        lambda folder: (folder / "manifest.json").unlink(),
        ["cannot read", "manifest.json: No such file"],
    ),
    "torn manifest": (
        lambda folder: (folder / "manifest.json").write_text('{"format_version": 1, "con', encoding="utf-8"),
        ["manifest.json is damaged"],
    ),
    "manifest of noise": (
        lambda folder: (folder / "manifest.json").write_bytes(bytes(range(256))),
        ["manifest.json is damaged"],
    ),
    "manifest of something else": (
        lambda folder: (folder / "manifest.json").write_text("[1, 2]", encoding="utf-8"),
        ["manifest.json is not a checkpoint's manifest"],
    ),
    "newer format": (
        lambda folder: edit(folder, lambda manifest: manifest.update(format_version=99)),
        ["has format 99"],
    ),
    "no progress": (
        lambda folder: edit(folder, lambda manifest: manifest.pop("progress")),
        ["manifest.json is invalid", "'progress'"],
    ),
    "no hash": (
        lambda folder: edit(folder, lambda m: m["files"]["model.safetensors"].pop("sha256")),
        ["manifest.json is invalid", "'sha256'"],
    ),
    "progress of words": (
        lambda folder: edit(folder, lambda m: m["progress"].update(timesteps="many")),
        ["manifest.json is invalid", "'many'"],
    ),
    "no state": (
        lambda folder: edit(folder, lambda m: m.update(state={}, files={})),
        ["manifest.json is invalid", "model"],
    ),
    "unknown setting": (lambda folder: edit(folder, lambda m: m["config"].update(num_env=3)), ["'num_env'"]),
    "file outside": (
        lambda folder: edit(
            folder, lambda m: m["files"].update({"../x.safetensors": {"size": 1, "sha256": ""}})
        ),
        ["refers to a file outside its folder"],
    ),
    "missing folder": (lambda folder: shutil.rmtree(folder), []),
}
NO_FOLDER = {"missing manifest": "holds no checkpoint", "missing folder": "does not exist"}


@pytest.mark.parametrize("name", ["last", "checkpoints/last", "checkpoints/step_64"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_that_is_named_is_refused_in_one_sentence(cli, run_dir, damage, name):
    """Whoever names a checkpoint gets that one or none."""
    harm, facts = DAMAGES[damage]
    if name.endswith("step_64") and damage in NO_FOLDER:
        facts = [NO_FOLDER[damage]]
    harm(last(run_dir))
    before = content(run_dir)
    outcome = cli("eval", run_dir / name)
    assert outcome.code == 2, outcome
    for fact in ["step_64", *facts]:
        assert fact in outcome.sentence
    assert outcome.out == ""
    assert content(run_dir) == before
    with pytest.raises(UserError, match="step_64"):
        rl_training.load(run_dir / name)


@shows_warnings
@pytest.mark.parametrize("damage", DAMAGES)
def test_evaluating_a_run_passes_over_its_damaged_newest_checkpoint(cli, run_dir, damage):
    expected = cli("eval", run_dir / "checkpoints" / "step_32", "--num-episodes", 2)
    assert "after 32 steps" in expected.out
    harm, facts = DAMAGES[damage]
    harm(last(run_dir))
    before = content(run_dir)
    outcome = cli("eval", run_dir, "--num-episodes", 2)
    assert (outcome.code, outcome.out) == (0, expected.out)
    assert content(run_dir) == before
    with pytest.warns(UserWarning, match="step_64") as caught:
        assert rl_training.load(run_dir).agent.timesteps == 32
    (warning,) = caught
    for fact in ["step_64", "step_32", *facts]:
        assert fact in str(warning.message)


@shows_warnings
@pytest.mark.parametrize("damage", DAMAGES)
def test_the_command_says_that_it_evaluates_an_older_checkpoint(cli, run_dir, damage):
    harm, facts = DAMAGES[damage]
    harm(last(run_dir))
    (warning,) = cli("eval", run_dir, "--num-episodes", 2).warnings
    for fact in ["step_64", "step_32", *facts]:
        assert fact in warning


@shows_warnings
@pytest.mark.parametrize("damage", DAMAGES)
def test_resuming_a_run_goes_back_to_the_newest_whole_checkpoint(cli, run_dir, whole, rows, damage):
    """And what comes out is what would have come out without the pause and without the damage."""
    harm, facts = DAMAGES[damage]
    harm(last(run_dir))
    outcome = cli("resume", run_dir, "--quiet")
    assert (outcome.code, outcome.out.strip()) == (0, str(run_dir)), outcome
    (warning,) = outcome.warnings
    for fact in ["step_64", "step_32", *facts]:
        assert fact in warning
    assert_same_run(run_dir, whole, rows)
    data = json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))
    assert [entry["timesteps"] for entry in data["resumes"]] == [32]
    assert rl_training.load(last(run_dir)).agent.timesteps == 64, "the damaged one was made again"


@pytest.mark.parametrize("arguments", [["eval"], ["resume", "--quiet"]])
@pytest.mark.parametrize("name", ["", "last", "checkpoints/step_64"])
def test_a_link_in_place_of_a_file_is_not_followed(cli, run_dir, arguments, name):
    """That is no damage but somebody's doing: nothing is passed over, and the whole run is refused."""
    path = last(run_dir) / "model.safetensors"
    path.symlink_to(path.rename(run_dir.parent / "elsewhere"))
    before = content(run_dir)
    outcome = cli(arguments[0], run_dir / name, *arguments[1:])
    assert outcome.code == 2
    assert f"{path} is a link" in outcome.sentence
    assert content(run_dir) == before


def test_several_damaged_checkpoints_are_each_named(run_dir, whole, rows):
    """Down to the very first instant of the run."""
    for name in ("step_64", "step_32"):
        flip_a_bit(run_dir / "checkpoints" / name)
    with pytest.warns(UserWarning, match="is damaged: its hash differs") as caught:
        resume(run_dir)
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 2
    assert messages[0].endswith("falling back to step_32")
    assert messages[1].endswith("falling back to step_0")
    assert_same_run(run_dir, whole, rows)


@shows_warnings
@pytest.mark.parametrize("command", ["eval", "resume"])
def test_a_run_without_a_whole_checkpoint_is_refused(cli, run_dir, command):
    for folder in (run_dir / "checkpoints").glob("step_*"):
        flip_a_bit(folder)
    before = content(run_dir)
    outcome = cli(command, run_dir)
    assert outcome.code == 2
    lines = outcome.err.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["warning", "warning", "error"]
    assert all(name in line for name, line in zip(["step_64", "step_32", "step_0"], lines, strict=True))
    assert outcome.out == ""
    assert content(run_dir) == before


@pytest.mark.parametrize("command", ["eval", "resume"])
def test_a_run_without_any_checkpoint_is_refused(cli, run_dir, command):
    for folder in (run_dir / "checkpoints").glob("step_*"):
        shutil.rmtree(folder)
    outcome = cli(command, run_dir)
    assert outcome.code == 2
    assert "has no checkpoint to resume from" in outcome.sentence


def test_an_older_checkpoint_still_loads(run_dir, cli):
    flip_a_bit(last(run_dir))
    outcome = cli("eval", run_dir / "checkpoints" / "step_32", "--num-episodes", 1, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out)["num_episodes"] == 1


GARBLED = {
    "outside": b"../../elsewhere\n",
    "no folder": b"manifest.json\n",
    "outside by a detour": b"step_64/../../x\n",
    "empty": b"",
    "noise": bytes(range(256)),
    "missing": None,
}


@pytest.fixture(params=GARBLED)
def garbled(request, run_dir) -> Path:
    """A run whose `last` is not a checkpoint's name."""
    pointer, text = run_dir / "checkpoints" / "last", GARBLED[request.param]
    if text is None:
        pointer.unlink()
    else:
        pointer.write_bytes(text)
    return run_dir


def test_a_pointer_to_anything_but_a_checkpoint_of_the_run_is_refused_where_it_is_named(cli, garbled):
    readable = (garbled / "checkpoints" / "last").exists() and b"\xff" not in (
        garbled / "checkpoints" / "last"
    ).read_bytes()
    for name in ("last", "checkpoints/last"):
        outcome = cli("eval", garbled / name)
        assert outcome.code == 2
        expected = "which is not a checkpoint of this run" if readable else "has no checkpoint yet"
        assert expected in outcome.sentence


@shows_warnings
def test_a_run_with_such_a_pointer_is_evaluated_from_its_newest_checkpoint(cli, garbled):
    outcome = cli("eval", garbled, "--num-episodes", 1)
    assert outcome.code == 0
    assert "after 64 steps" in outcome.out
    with pytest.warns(UserWarning, match=r"checkpoints/last .*; using step_64$"):
        assert rl_training.load(garbled).agent.timesteps == 64


@shows_warnings
def test_the_command_says_that_the_pointer_is_wrong(cli, garbled):
    (warning,) = cli("eval", garbled, "--num-episodes", 1).warnings
    assert str(garbled / "checkpoints" / "last") in warning
    assert warning.endswith("using step_64")


def test_going_on_from_such_a_pointer_by_name_is_refused(cli, garbled):
    outcome = cli("resume", garbled / "last", "--quiet")
    assert outcome.code == 2
    assert "last" in outcome.sentence


@shows_warnings
def test_a_run_with_such_a_pointer_goes_on_from_its_newest_checkpoint(
    cli, garbled, whole, rows, read_pointer
):
    outcome = cli("resume", garbled, "--quiet")
    assert outcome.code == 0
    (warning,) = outcome.warnings
    assert warning.endswith("using step_64")
    assert read_pointer(garbled, "last").name == "step_128"
    assert_same_run(garbled, whole, rows)


def test_loading_runs_no_code(run_dir):
    """Tensors and JSON only: a checkpoint has no other kind of file."""
    assert {path.suffix for path in last(run_dir).iterdir()} == {".safetensors", ".json"}


BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
OTHERS = {
    "wider observation": (spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(2)),
    "more actions": (BOX, spaces.Discrete(3)),
    "another kind of action": (BOX, spaces.Box(-1.0, 1.0, (2,), np.float32)),
    "another kind of action of the same size": (BOX, spaces.MultiBinary(2)),
    "actions that start elsewhere": (BOX, spaces.Discrete(2, start=5)),
    "another kind of observation of the same size": (spaces.MultiBinary(3), spaces.Discrete(2)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_an_environment_of_other_spaces_is_refused(tiny, tmp_path, name):
    PPO(tiny(env_id="AnySpaces"), env=lambda: AnySpaces(BOX, spaces.Discrete(2))).save(tmp_path / "agent")
    with pytest.raises(UserError) as caught:
        PPO.load(tmp_path / "agent", env=lambda: AnySpaces(*OTHERS[name]))
    message, saved = str(caught.value), (BOX, spaces.Discrete(2))
    changed = next(pair for pair in zip(saved, OTHERS[name], strict=True) if pair[0] != pair[1])
    assert message.startswith(f"checkpoint {tmp_path / 'agent'} was trained with ")
    before, now = map(space_text, changed)
    assert f"_space {before}, but environment 'AnySpaces' now has {now}" in message
    assert "\n" not in message
    assert len(message) < 1000


@pytest.mark.parametrize("name", OTHERS)
def test_a_run_does_not_go_on_in_an_environment_of_other_spaces(tiny, rows, name):
    run_dir = train(
        tiny(env_id="AnySpaces", total_timesteps=128),
        factory=lambda: AnySpaces(BOX, spaces.Discrete(2)),
        callbacks=[StopAtCollect(64)],
    ).run_dir
    kept = content(run_dir / "checkpoints")
    with pytest.raises(UserError, match=r"was trained with .*_space .*, but environment 'AnySpaces' now has"):
        resume(run_dir, factory=lambda: AnySpaces(*OTHERS[name]))
    assert content(run_dir / "checkpoints") == kept
    same = resume(run_dir, factory=lambda: AnySpaces(BOX, spaces.Discrete(2)))
    assert same.metrics["global_step"] == 128


def test_the_same_spaces_are_accepted(tiny, tmp_path):
    PPO(tiny(env_id="AnySpaces"), env=lambda: AnySpaces(BOX, spaces.Discrete(2))).save(tmp_path / "agent")
    same = PPO.load(tmp_path / "agent", env=lambda: AnySpaces(BOX, spaces.Discrete(2), length=3))
    assert same.evaluate(2)["lengths"] == [3, 3]


def test_the_settings_of_a_network_that_differ_are_refused(cli, run_dir):
    edit(last(run_dir), lambda m: m["config"]["algorithm"].update(hidden_sizes=[16]))
    outcome = cli("eval", run_dir / "last")
    assert outcome.code == 2
    assert "step_64 does not fit" in outcome.sentence
