"""Histograms of weights, gradients and activations: on every path, once each, without changing what is learned."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoders import Batched, Dropping

from rl_training.experiment import histograms
from rl_training.experiment.logs.sinks import EVENTS
from rl_training.experiment.logs.tensorboard import TensorBoardWriter
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from support.compared_runs import crashed, tensors, without_clock
from support.configs import CONTINUOUS, SETTINGS

HISTOGRAMS = "histograms"


def written(run_dir: Path) -> list[tuple[int, str, Any]]:
    """Every histogram as TensorBoard reads it: step, name, and the rows (left, right, count)."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    return [
        (event.step, value.tag, make_ndarray(value.tensor))
        for event in EventFileLoader(str(run_dir / EVENTS)).Load()
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == HISTOGRAMS
    ]


def test_tensorboard_reads_them(tmp_path):
    (tmp_path / "tensorboard").mkdir()
    writer = TensorBoardWriter(tmp_path / EVENTS)
    numbers = np.array([0.0, 1.0, 1.0, 2.0, np.nan, np.inf], np.float32)
    writer.log_histograms({"a/b": numbers, "none": np.array([np.nan]), "one": np.ones(3)}, 70)
    writer.log({"number": 3.0}, 71)
    writer.close()
    (step, tag, table), (_, other, ones) = written(tmp_path)
    assert (step, tag, other) == (70, "a/b", "one")
    assert table[:, 2].sum() == 4
    assert [table[table[:, 2] > 0][i, 2] for i in range(3)] == [1, 2, 1]
    assert table[0, 0] == 0.0
    assert table[-1, 1] == 2.0
    assert ones[:, 2].sum() == 3


@pytest.mark.parametrize("path", ["auto", "autograd"])
@pytest.mark.parametrize("algo", sorted(SETTINGS))
def test_weights_gradients_and_activations(tiny, algo, path):
    config = tiny(algo, update_path=path)
    plain = train(config).run_dir
    run = train(config.with_overrides(log_histograms_every=6 if config.offline else 30)).run_dir
    found = written(run)
    steps = {"dqn": [32, 60], "sac": [30, 60], "td3": [30, 60]}  # the first updates at or after 30 and 60
    wanted = [6, 12] if config.offline else steps.get(algo, [32, 64])  # with a dataset alone, updates count
    assert sorted({step for step, _, _ in found}) == wanted
    names = {name for _, name, _ in found}
    assert len(names) * 2 == len(found)
    weights, gradients, activations = (
        {name.partition("/")[2] for name in names if name.startswith(kind)}
        for kind in ("weights/", "gradients/", "activations/")
    )
    assert weights == gradients
    assert activations
    critics = algo in CONTINUOUS
    for names_of_kind in (weights, activations):
        assert any(name.startswith("critics") for name in names_of_kind) == critics
        assert any(name.startswith("network") for name in names_of_kind)
    last = "step_16" if config.offline else "step_64"
    folders = [each / "checkpoints" / last for each in (run, plain)]
    assert tensors(folders[0]) == tensors(folders[1])


@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("dqn", {"dueling": True, "noisy": True}),
        ("sac", {"use_sde": True}),
        ("td3", {"encoder": "tiny_encoders:Plain", "share_encoder": True}),
        ("ppo", {"encoder": "tiny_encoders:Plain", "share_encoder": False}),
        ("recurrent_ppo", {"encoder": "tiny_encoders:Plain", "normalize_obs": True}),
    ],
)
def test_other_networks(tiny, algo, settings):
    config = tiny(algo, **settings)
    run, plain = train(config.with_overrides(log_histograms_every=30)).run_dir, train(config).run_dir
    assert {name.partition("/")[0] for _, name, _ in written(run)} == {"weights", "gradients", "activations"}
    folders = [each / "checkpoints" / "step_64" for each in (run, plain)]
    assert tensors(folders[0]) == tensors(folders[1])


def test_they_are_of_the_networks(tiny, monkeypatch):
    seen: dict[str, Any] = {}
    numbers = histograms.network_numbers

    def noted(learner: Any, batch: Any) -> Any:
        found = numbers(learner, batch)
        optimizer = learner.optimizer
        seen["gradient"] = optimizer.gradient.numpy().copy()
        seen["flat"] = np.concatenate([found[name] for name in found if name.startswith("gradients/")])
        body = learner.policy.network.actor_body
        with torch.no_grad():
            seen["wanted"] = body(learner.policy.prepare(batch.obs)).numpy().ravel()
        seen["activation"] = found["activations/network.actor_body.1"]
        return found

    monkeypatch.setattr(histograms, "network_numbers", noted)
    train(tiny("ppo", log_histograms_every=64))
    assert isinstance(seen["gradient"], np.ndarray)
    assert np.array_equal(np.sort(seen["gradient"]), np.sort(seen["flat"]))
    assert np.array_equal(seen["activation"], seen["wanted"])  # a rollout of 32 rows


class AlwaysDropping(Dropping):
    """Draws while it acts, too."""

    def forward(self, inputs: Any) -> Any:
        return torch.nn.functional.dropout(self.layers(inputs), 0.5, training=True)


@pytest.mark.parametrize("encoder", [Batched, Dropping, AlwaysDropping])
def test_an_encoder_with_a_training_mode_learns_the_same(tiny, encoder):
    def model(**settings: Any) -> Any:
        from rl_training import PPO

        return PPO(tiny("ppo", **settings), encoder=encoder).learn()

    folders = [each.agent.path for each in (model(), model(log_histograms_every=16))]
    assert tensors(folders[0]) == tensors(folders[1])


# the last one continues at 16 timesteps, where histograms are due that wait for the first update
@pytest.mark.parametrize(("algo", "kill_at"), [("ppo", 96), ("sac", 96), ("sac", 20)])
def test_a_resumed_run_repeats_none_and_loses_none(tiny, rows, algo, kill_at):
    config = tiny(algo, log_histograms_every=16, checkpoint_every_timesteps=16, total_timesteps=128)
    whole, killed = train(config).run_dir, crashed(config, kill_at)
    resume(killed)
    ours, theirs = written(killed), written(whole)
    assert [one[:2] for one in ours] == [one[:2] for one in theirs]
    assert all(np.array_equal(one[2], other[2]) for one, other in zip(ours, theirs, strict=True))
    assert without_clock(rows(killed / "metrics.jsonl")) == without_clock(rows(whole / "metrics.jsonl"))


def test_nothing_is_written_or_computed_by_default(tiny, monkeypatch):
    def refuse(*_: Any) -> Any:
        raise AssertionError("not asked for")

    monkeypatch.setattr(histograms, "network_numbers", refuse)
    monkeypatch.setattr(histograms.HistogramLog, "__init__", refuse)
    assert written(train(tiny("ppo")).run_dir) == []
