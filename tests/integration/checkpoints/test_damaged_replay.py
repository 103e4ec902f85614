"""Replay data that is damaged, missing or forged: it is named, passed over where possible, and never half used."""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import rl_training
from rl_training.config import TrainConfig, load_config
from rl_training.core.errors import RunFault, UserError
from rl_training.core.state import split_state
from rl_training.core.types import Progress, UpdateResult
from rl_training.experiment.checkpoints.format import manifest_hash
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback, TrainingContext

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = TrainConfig(
        algo="dqn",
        env_id="CartPole-v1",
        seed=3,
        output_dir=str(tmp_path_factory.mktemp("replay")),
        total_timesteps=600,
        num_envs=2,
        num_eval_episodes=1,
        eval_every_timesteps=0,
        checkpoint_every_timesteps=200,
    ).with_overrides(
        buffer_size=1000, learning_starts=50, hidden_sizes=(8,), batch_size=8, n_step=3, prioritized=True
    )
    return train(config).run_dir


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def segments(run_dir: Path) -> list[Path]:
    found = (run_dir / "checkpoints" / "replay").glob("segment_*.safetensors")
    return sorted(found, key=lambda path: int(path.stem.split("_")[-1]))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


def edit_manifest(run_dir: Path, change: Any) -> None:
    path = run_dir / "checkpoints" / (run_dir / "checkpoints" / "last").read_text().strip() / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest["facts"]["replay"]["transitions"])
    path.write_text(json.dumps(manifest | {"sha256": manifest_hash(manifest)}))


def test_each_checkpoint_writes_only_what_is_new(run_dir: Path) -> None:
    spans = [tuple(int(part) for part in path.stem.split("_")[1:]) for path in segments(run_dir)]
    assert len(spans) == 3
    assert [start for start, _ in spans] == [0, spans[0][1], spans[1][1]]


@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_a_damaged_newest_segment_is_named_and_an_older_checkpoint_used(run_dir: Path, damage: Any) -> None:
    damage(segments(run_dir)[-1])
    name = segments(run_dir)[-1].name if damage is flip else "segment_"
    with pytest.warns(UserWarning, match=f"{name}.*falling back to step_400"):
        result = resume(run_dir, total_timesteps=700)
    assert result.metrics["global_step"] == 700


def test_the_resumed_run_equals_one_that_was_never_damaged(run_dir: Path, finished: Path) -> None:
    flip(segments(run_dir)[-1])
    with pytest.warns(UserWarning, match="falling back"):
        resume(run_dir)
    for name in ("model", "optimizer", "target", "source"):
        file = Path("checkpoints") / "step_600" / f"{name}.safetensors"
        assert (run_dir / file).read_bytes() == (finished / file).read_bytes(), name
    assert [path.read_bytes() for path in segments(run_dir)] == [p.read_bytes() for p in segments(finished)]


class DeletesSegments(Callback):
    """Deletes every segment after 250 steps, as a clean-up job of the user's might, and stops after `until`."""

    def __init__(self, output_dir: Path, until: int) -> None:
        self.output_dir, self.until, self.done = output_dir, until, False

    def on_update(self, progress: Progress, result: UpdateResult) -> None:
        if progress.timesteps >= 250 and not self.done:
            self.done = True
            (run_dir,) = self.output_dir.iterdir()
            for path in segments(run_dir):
                path.unlink()
        if progress.timesteps >= self.until:
            raise KeyboardInterrupt


@pytest.mark.parametrize("until", [500, 10_000], ids=["killed and resumed", "left alone"])
def test_a_segment_deleted_while_the_run_goes_on_is_written_again(
    finished: Path, tmp_path: Path, until: int
) -> None:
    config = load_config(finished / "config.yaml").with_overrides(output_dir=str(tmp_path))
    callback = DeletesSegments(tmp_path, until)
    with (
        pytest.warns(UserWarning, match=r"segment_0_\d+.safetensors was deleted; writing its rows again"),
        contextlib.suppress(KeyboardInterrupt),
    ):
        train(config, callbacks=[callback])
    (run_dir,) = tmp_path.iterdir()
    if until < 600:
        assert not (run_dir / "checkpoints" / "step_600").exists()
        resume(run_dir)
    for name in ("model", "optimizer", "target", "source"):
        file = Path("checkpoints") / "step_600" / f"{name}.safetensors"
        assert (run_dir / file).read_bytes() == (finished / file).read_bytes(), name
    assert [path.read_bytes() for path in segments(run_dir)] == [p.read_bytes() for p in segments(finished)]


@pytest.mark.filterwarnings("ignore:.*falling back")
def test_a_damaged_oldest_segment_leaves_the_agent_usable(run_dir: Path) -> None:
    shutil.rmtree(
        run_dir / "checkpoints" / "step_0", ignore_errors=True
    )  # it has an empty buffer and is whole
    flip(segments(run_dir)[0])
    with pytest.raises(UserError, match=r"segment_0_\d+.*damaged.*the agent in .* is intact"):
        resume(run_dir, total_timesteps=700)
    assert rl_training.load(run_dir).evaluate(1)["num_episodes"] == 1


def test_a_new_run_does_not_begin_with_damaged_replay_data(run_dir: Path, tmp_path: Path) -> None:
    flip(segments(run_dir)[-1])
    start = run_dir / "checkpoints" / "step_600"
    config = load_config(run_dir / "config.yaml").with_overrides(output_dir=str(tmp_path / "new"))
    with pytest.raises(UserError, match=r"damaged.*the agent in .* is intact"):
        train(config, start_from=start)
    assert not list((tmp_path / "new").glob("*"))


@pytest.mark.parametrize("group", ["model", "optimizer", "target"])
def test_numbers_that_are_not_finite_are_not_written(run_dir: Path, group: str) -> None:
    """The learner's last update may break it after the trainer has looked at its loss."""

    class Poison(Callback):
        def on_start(self, context: TrainingContext) -> None:
            self.agent: Any = context.agent

        def on_update(self, progress: Progress, result: UpdateResult) -> None:
            if progress.timesteps == 700:  # the last one
                tensors = split_state(self.agent.state[group])[0]
                next(tensor for tensor in tensors.values() if tensor.ndim).view(-1)[0] = float("nan")

    with pytest.raises(RunFault, match=rf"checkpoint step_700 was not written: '{group}/.*not finite"):
        resume(run_dir, total_timesteps=700, callbacks=[Poison()])
    newest = max(run_dir.glob("checkpoints/step_*"), key=lambda path: int(path.name[5:]))
    assert newest.name == "step_600"


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry["segments"][0].update(name="../../../model.safetensors"),
        lambda entry: entry["segments"][0].update(start=-5),
        lambda entry: entry.update(total_rows=10**9),
        lambda entry: entry.update(kept_rows=10**9),
        lambda entry: entry.update(kept_rows=-1),
        lambda entry: entry["segments"].pop(1),
        lambda entry: entry["segments"][0].update(size="large"),
        lambda entry: entry.update(segments="all"),
    ],
    ids=["outside", "negative", "too many", "too many kept", "negative kept", "gap", "type", "no list"],
)
def test_a_forged_list_is_refused_in_a_sentence(run_dir: Path, change: Any) -> None:
    edit_manifest(run_dir, change)
    with pytest.raises(UserError):
        resume(run_dir / "checkpoints" / "last", total_timesteps=700)
