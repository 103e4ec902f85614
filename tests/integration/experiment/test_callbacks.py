"""Callbacks: the four events, the stops, and what a stopped run leaves behind."""

import json
from pathlib import Path

import pytest

from rl_training.algorithms import PPO
from rl_training.core.errors import UserError
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback, PauseTraining, StopOnPlateau, StopTraining


def metadata(run_dir: Path) -> dict:
    return json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))


class Diary(Callback):
    def __init__(self):
        self.events = []

    def on_collect(self, progress):
        self.events.append(("collect", progress.timesteps, progress.updates))

    def on_update(self, progress, result):
        assert float(result.metrics["loss"]) == float(result.metrics["loss"])
        self.events.append(("update", progress.timesteps, progress.updates))

    def on_evaluate(self, progress, summary):
        assert summary["num_episodes"] == 2
        self.events.append(("evaluate", progress.timesteps, progress.updates))

    def on_end(self, progress):
        self.events.append(("end", progress.timesteps, progress.updates))


def test_a_callback_sees_the_four_events_in_order(tiny):
    diary = Diary()
    PPO(tiny(total_timesteps=96, eval_every_timesteps=64)).learn(callbacks=[diary])
    assert diary.events == [
        ("collect", 32, 0), ("update", 32, 1),
        ("collect", 64, 1), ("update", 64, 2), ("evaluate", 64, 2),
        ("collect", 96, 2), ("update", 96, 3), ("evaluate", 96, 3),
        ("end", 96, 3),
    ]  # fmt: skip


@pytest.mark.parametrize("event", ["on_collect", "on_update", "on_evaluate"])
def test_stop_training_ends_the_run_cleanly_with_a_checkpoint(tiny, rows, read_pointer, event):
    def stop(*_):
        raise StopTraining("enough")

    callback, diary = Callback(), Diary()
    setattr(callback, event, stop)
    result = train(tiny(total_timesteps=640, eval_every_timesteps=32), callbacks=[callback, diary])
    assert result.stop_reason == "enough"
    assert result.metrics["global_step"] == 32
    assert metadata(result.run_dir)["status"] == "stopped"
    assert metadata(result.run_dir)["stop_reason"] == "enough"
    assert read_pointer(result.run_dir, "last").name == "step_32" == result.checkpoint_path.name
    assert [row["time/total_timesteps"] for row in rows(result.run_dir / "metrics.jsonl")] == [32]
    assert len(rows(result.run_dir / "evaluations.jsonl")) == 1
    # the iteration is finished and the others are told
    assert [name for name, *_ in diary.events] == ["collect", "update", "evaluate", "end"]


def test_a_stopped_run_is_finished_until_a_budget_is_given(tiny, rows):
    result = train(tiny(total_timesteps=128, eval_every_timesteps=32, stop_at_reward=0.0))
    before = {path: path.read_bytes() for path in result.run_dir.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"is finished \(mean return .* reached 0\); .*--total-timesteps 128"):
        resume(result.run_dir)
    assert {path: path.read_bytes() for path in result.run_dir.rglob("*") if path.is_file()} == before
    again = resume(result.run_dir, total_timesteps=128)  # stops again: the threshold is part of the run
    assert again.metrics["global_step"] == 64
    assert [row["timesteps"] for row in rows(result.run_dir / "evaluations.jsonl")] == [32, 64]


@pytest.mark.parametrize("event", ["on_collect", "on_update"])
def test_pause_training_writes_a_checkpoint_and_nothing_else(tiny, rows, read_pointer, event):
    def pause(progress, *_):
        if progress.timesteps >= 96:
            raise PauseTraining("later")

    callback, diary = Callback(), Diary()
    setattr(callback, event, pause)
    config = tiny(total_timesteps=640, eval_every_timesteps=64, log_every_timesteps=64)
    result = train(config, callbacks=[callback, diary])
    assert result.paused
    assert result.stop_reason == "later"
    assert result.metrics["global_step"] == 96
    data = metadata(result.run_dir)
    assert (data["status"], data["stop_reason"]) == ("paused", "later")
    assert read_pointer(result.run_dir, "last").name == "step_96" == result.checkpoint_path.name
    # neither a row nor an evaluation that the uninterrupted run would not have
    assert [row["time/total_timesteps"] for row in rows(result.run_dir / "metrics.jsonl")] == [64]
    assert [row["timesteps"] for row in rows(result.run_dir / "evaluations.jsonl")] == [64]
    assert [name for name, *_ in diary.events][-3:] == ["collect", "update", "end"]


def test_a_run_that_was_paused_before_its_first_evaluation_has_no_score(tiny):
    class Pause(Callback):
        def on_collect(self, progress):
            raise PauseTraining("at once")

    result = train(tiny(), callbacks=[Pause()])
    assert result.paused
    assert not [name for name in result.metrics if name.startswith("eval/")]
    finished = resume(result.run_dir)
    assert not finished.paused
    assert {"eval/mean_reward", "eval/std_reward", "eval/mean_ep_length"} <= set(finished.metrics)
    assert metadata(result.run_dir)["status"] == "finished"


def test_a_pause_in_the_last_iteration_leaves_the_last_evaluation_to_the_resumed_run(tiny, rows):
    class Pause(Callback):
        def on_collect(self, progress):
            if progress.done:
                raise PauseTraining("at the very end")

    result = train(tiny(), callbacks=[Pause()])
    assert result.metrics["global_step"] == 64
    assert result.paused
    assert metadata(result.run_dir)["status"] == "paused"
    assert rows(result.run_dir / "evaluations.jsonl") == []
    again = resume(result.run_dir)
    assert (again.metrics["global_step"], again.paused) == (64, False)
    assert metadata(result.run_dir)["status"] == "finished"
    assert [row["timesteps"] for row in rows(result.run_dir / "evaluations.jsonl")] == [64]
    whole = train(tiny())
    assert (again.checkpoint_path / "model.safetensors").read_bytes() == (
        whole.checkpoint_path / "model.safetensors"
    ).read_bytes()


def test_stop_at_reward(tiny, rows):
    """The clock pays at most 8: a threshold of 0 is met by the first evaluation, one of 9 by none."""
    stopped = train(tiny(total_timesteps=128, eval_every_timesteps=32, stop_at_reward=0.0))
    assert stopped.metrics["global_step"] == 32
    assert "reached 0" in stopped.stop_reason
    never = train(tiny(total_timesteps=128, eval_every_timesteps=32, stop_at_reward=9.0))
    assert never.stop_reason is None
    assert never.metrics["global_step"] == 128
    assert metadata(never.run_dir)["status"] == "finished"
    assert all(row["mean_reward"] < 9 for row in rows(never.run_dir / "evaluations.jsonl"))


def test_a_plateau_stops_after_so_many_evaluations_without_a_new_best(tiny, rows):
    config = tiny(
        total_timesteps=640, eval_every_timesteps=32, stop_after_stale_evals=3, learning_rate=1e-9
    )  # learns nothing
    result = train(config)
    assert len(rows(result.run_dir / "evaluations.jsonl")) == 4  # the best one and three more
    assert result.metrics["global_step"] == 128
    assert "3 evaluations without improvement" in result.stop_reason


def test_a_run_that_stops_on_a_plateau_ends_with_a_checkpoint_of_its_last_step(tiny, read_pointer):
    config = tiny(total_timesteps=640, eval_every_timesteps=32, stop_after_stale_evals=2, learning_rate=1e-9)
    result = train(config)
    assert result.metrics["global_step"] == 96
    assert result.checkpoint_path.name == "step_96"
    assert read_pointer(result.run_dir, "last").name == "step_96"
    assert read_pointer(result.run_dir, "best").name == "step_32"


def test_max_time_pauses_at_the_first_update_after_it(tiny, cli, rows):
    config = tiny(
        env_id="tiny_envs:Slow-v0", total_timesteps=96, max_time=0.4
    )  # a rollout takes 0.64 seconds
    result = train(config)
    assert result.metrics["global_step"] == 32
    assert "time limit" in result.stop_reason
    assert result.paused
    assert metadata(result.run_dir)["status"] == "paused"
    assert result.checkpoint_path.name == "step_32"
    assert rows(result.run_dir / "evaluations.jsonl") == []
    # each resume has its own limit, and without one goes on to the end
    outcome = cli("resume", result.run_dir, "--max-time", "0.4")
    assert (outcome.code, outcome.err) == (0, "")
    assert "Paused after 64 steps" in outcome.out
    assert outcome.out.rstrip().endswith(f"resume {result.run_dir}")
    assert resume(result.run_dir).metrics["global_step"] == 96
    assert metadata(result.run_dir)["status"] == "finished"
    unhurried = train(tiny(total_timesteps=64, max_time=600))
    assert unhurried.stop_reason is None


def test_an_error_in_a_callback_is_not_swallowed(tiny):
    class Broken(Callback):
        def on_update(self, progress, result):
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        train(tiny(), callbacks=[Broken()])
    (run_dir,) = Path(tiny().output_dir).iterdir()
    assert metadata(run_dir)["status"] == "failed"
    assert metadata(run_dir)["error"] == "mine"


class Count(Callback):
    def __init__(self):
        self.updates = 0

    def on_update(self, progress, result):
        self.updates += 1

    def state_dict(self):
        return {"updates": self.updates}

    def load_state_dict(self, state):
        self.updates = state["updates"]


class OtherCount(Count):
    pass


class PauseAt(Callback):
    def __init__(self, timesteps):
        self.timesteps = timesteps

    def on_collect(self, progress):
        if progress.timesteps >= self.timesteps:
            raise PauseTraining("later")


def test_callbacks_remember_across_a_resume_by_class_and_order(tiny):
    first, second = Count(), Count()
    second.updates = 100
    run_dir = train(tiny(), callbacks=[first, OtherCount(), second, PauseAt(32)]).run_dir
    again = [OtherCount(), Count(), Count(), Count()]  # another order, one more, and one that is gone
    resume(run_dir, callbacks=again)
    assert [callback.updates for callback in again] == [2, 2, 102, 1]


def test_a_new_run_from_an_agent_begins_with_fresh_callbacks(tiny):
    """`learn` a second time makes a folder of its own: a plateau or a count of the first is not its own."""
    model = PPO(tiny())
    model.learn(callbacks=[Count()])
    again = Count()
    model.learn(callbacks=[again])
    assert model.agent.timesteps == 128
    assert again.updates == 2


def test_a_callback_that_was_not_there_before_starts_with_its_own_state(tiny):
    """The checkpoint knows nothing of it; what others saved is not handed to it."""
    model = PPO(tiny()).learn()
    patience = StopOnPlateau(patience=100)
    model.learn(callbacks=[patience])
    assert model.agent.timesteps == 128
    assert patience.best >= 0.0


def test_printing_is_not_for_the_library(tiny, capfd):
    PPO(tiny()).learn()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
