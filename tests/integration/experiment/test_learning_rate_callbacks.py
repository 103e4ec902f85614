"""A callback may change the learning rate: it lasts, it is logged, and a resumed run has it."""

from typing import Any

import numpy as np
import pytest

from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback
from support.compared_runs import assert_same_run, crashed, tensors
from support.configs import OFFLINE, SETTINGS


class ChangeAt(Callback):
    """Sets the learning rate once, when the run's clock comes to a time: by a collect, or by an update."""

    def __init__(self, changes: dict[int, float | None]) -> None:
        self.changes = changes

    def on_start(self, context: Any) -> None:
        self.context, self.last = context, context.start.clock

    def on_collect(self, progress: Any) -> None:
        self._change(progress.clock)

    def on_update(self, progress: Any, result: Any) -> None:
        if progress.counts_updates:
            self._change(progress.clock)

    def _change(self, clock: int) -> None:
        for at, value in self.changes.items():
            if self.last < at <= clock:
                self.context.set_learning_rate(value)
        self.last = clock


@pytest.mark.parametrize("algo", sorted(SETTINGS))
def test_it_lasts_is_logged_and_survives_an_interruption(tiny, rows, algo):
    config = tiny(
        algo,
        **{"total_updates" if algo in OFFLINE else "total_timesteps": 128},
        log_every_timesteps=32,
        checkpoint_every_timesteps=32,
        learning_rate=1e-3,
        learning_rate_schedule="linear",
    )
    changes = {64: 5e-2, 120: None}
    whole = train(config, callbacks=[ChangeAt(changes)]).run_dir
    logged = [row["train/learning_rate"] for row in rows(whole / "metrics.jsonl")]
    assert logged[0] < 1e-3
    assert logged[2] == pytest.approx(5e-2)
    assert logged[3] < 5e-2
    plain = train(config).run_dir
    assert tensors(plain / "checkpoints" / "step_128") != tensors(whole / "checkpoints" / "step_128")
    killed = crashed(config, 112, callbacks=[ChangeAt(changes)])  # after the change, before the return
    resume(killed, callbacks=[ChangeAt(changes)])
    assert_same_run(killed, whole, rows)


def test_a_learning_rate_of_zero_learns_nothing(tiny):
    class Zero(Callback):
        def on_start(self, context: Any) -> None:
            context.set_learning_rate(0.0)

    run = train(tiny("ppo", checkpoint_every_timesteps=32), callbacks=[Zero()]).run_dir
    models = [tensors(run / "checkpoints" / f"step_{n}")["model.safetensors"] for n in (32, 64)]
    assert models[0] == models[1]


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
def test_a_wrong_one_is_refused(tiny, wrong):
    class Wrong(Callback):
        def on_start(self, context: Any) -> None:
            context.set_learning_rate(wrong)

    with pytest.raises(ValueError, match="is not a finite number ≥ 0"):
        train(tiny("ppo"), callbacks=[Wrong()])
