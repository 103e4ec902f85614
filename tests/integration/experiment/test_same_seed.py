"""The same seed gives the same run, whatever called it and wherever its environments live."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from rl_training.algorithms import PPO
from rl_training.algorithms.ppo import ppo_loss
from rl_training.experiment.logs.sinks import WALL_CLOCK
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback, PauseTraining
from rl_training.trainer import train_ppo

MODEL = "model.safetensors"


def model_bytes(run_dir: Path) -> bytes:
    pointer = (run_dir / "checkpoints" / "last").read_text(encoding="utf-8").strip()
    return (run_dir / "checkpoints" / pointer / MODEL).read_bytes()


def without_clock(table: list[dict]) -> list[dict]:
    for row in table:
        for name in WALL_CLOCK:
            row.pop(name, None)
    return table


def read_csv(path: Path) -> list[dict]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def lottery(tiny):
    """Random starts, so that nothing agrees by accident."""
    return lambda **changes: tiny(env_id="tiny_envs:Lottery-v0", **changes)


@pytest.mark.parametrize("backend", ["sync", "async", "native"])
def test_twice_the_same(lottery, rows, backend):
    changes = {
        "env_backend": backend,
        "normalize_obs": True,
        "normalize_reward": True,
        "eval_every_timesteps": 32,
    }
    if backend == "native":
        changes["env_id"] = "CartPole-v1"
    config = lottery().with_overrides(**changes)
    first, second = train(config).run_dir, train(config).run_dir
    assert first != second
    assert model_bytes(first) == model_bytes(second)
    assert without_clock(rows(first / "metrics.jsonl")) == without_clock(rows(second / "metrics.jsonl"))
    assert without_clock(read_csv(first / "metrics.csv")) == without_clock(read_csv(second / "metrics.csv"))
    assert (first / "evaluations.jsonl").read_bytes() == (second / "evaluations.jsonl").read_bytes()
    assert (first / "config.yaml").read_bytes() == (second / "config.yaml").read_bytes()


@pytest.mark.parametrize("backend", ["sync", "async", "native"])
def test_another_seed_differs(lottery, backend):
    changes = {"env_backend": backend}
    if backend == "native":
        changes["env_id"] = "CartPole-v1"
    config = lottery().with_overrides(**changes)
    assert model_bytes(train(config).run_dir) != model_bytes(train(config.with_overrides(seed=2)).run_dir)


def test_another_seed_plays_other_episodes(lottery, rows):
    """Not only the weights: with a learning rate near 0 the environments still differ."""
    lengths = []
    for seed in (1, 2):
        result = train(lottery(seed=seed, learning_rate=1e-12))
        lengths.append(rows(result.run_dir / "metrics.jsonl")[-1]["rollout/ep_len_mean"])
    assert lengths[0] != lengths[1]


def test_environments_in_processes_give_the_same_parameters(lottery, rows):
    runs = [
        train(lottery(env_backend=backend, num_envs=3, num_steps=16, total_timesteps=96)).run_dir
        for backend in ("sync", "async")
    ]
    assert model_bytes(runs[0]) == model_bytes(runs[1])
    tables = [without_clock(rows(run / "metrics.jsonl")) for run in runs]
    assert tables[0] == tables[1]


def test_python_function_and_command_line_agree(tiny, cli, tmp_path):
    """Also across processes: the last of the four is a process of its own."""
    from_python = PPO(tiny(env_id="CartPole-v1", learning_rate=1e-3)).learn().agent.path
    from_function = train_ppo(tiny(env_id="CartPole-v1"), learning_rate=1e-3).checkpoint_path
    path = tmp_path / "settings.yaml"
    path.write_text(tiny(env_id="CartPole-v1", seed=7).to_yaml(), encoding="utf-8")
    arguments = ["--config", str(path), "--seed", "1", "--learning-rate", "1e-3", "--quiet"]
    outcome = cli("train", *arguments)
    assert (outcome.code, outcome.err) == (0, "")
    done = subprocess.run(
        [sys.executable, "-m", "rl_training.cli", "train", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    expected = (from_python / MODEL).read_bytes()
    assert (from_function / MODEL).read_bytes() == expected
    assert model_bytes(Path(outcome.out.strip())) == expected
    assert model_bytes(Path(done.stdout.strip())) == expected


def test_evaluating_and_saving_more_often_changes_nothing(lottery):
    """Evaluation has environments and random streams of its own; a checkpoint only reads."""
    seldom = train(lottery(total_timesteps=128))
    often = train(
        lottery(
            total_timesteps=128, eval_every_timesteps=32, checkpoint_every_timesteps=32, log_every_timesteps=1,
            num_eval_episodes=5, eval_deterministic=False,
        )
    )  # fmt: skip
    assert model_bytes(seldom.run_dir) == model_bytes(often.run_dir)


def test_the_callers_thread_count_is_left_alone(tiny):
    import torch

    before = torch.get_num_threads()
    inside, between = [], []

    def watching_loss(minibatch, **settings):
        inside.append(torch.get_num_threads())
        return ppo_loss(minibatch, **settings)

    class Watch(Callback):
        def on_update(self, progress, result):
            between.append(torch.get_num_threads())

    config = tiny(num_threads=before + 1, update_path="autograd")
    train(config, callbacks=[Watch()], losses={"loss": watching_loss})
    assert set(between) == {1}
    assert set(inside) == {before + 1}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("ending", ["finished", "failed", "resumed"])
def test_the_callers_global_streams_are_left_alone(tiny, ending):
    """A run may seed them for careless environments, but gives them back as they were."""
    import random

    import numpy as np
    import torch

    class End(Callback):
        def on_update(self, progress, result):
            raise LookupError("mine") if ending == "failed" else PauseTraining("later")

    paused = train(tiny(), callbacks=[End()]).run_dir if ending == "resumed" else None
    random.seed(4242)
    np.random.seed(4242)
    torch.manual_seed(4242)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    if ending == "failed":
        with pytest.raises(LookupError):
            train(tiny(), callbacks=[End()])
    elif paused is not None:
        resume(paused)
    else:
        train(tiny())
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert after == before


def test_building_an_agent_draws_nothing_from_the_callers_streams(tiny):
    import random

    import numpy as np
    import torch

    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    PPO(tiny()).evaluate(1)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert after == before


def test_the_callers_global_streams_decide_nothing(tiny):
    import numpy as np
    import torch

    found = []
    for seed in (1, 2):
        np.random.seed(seed)
        torch.manual_seed(seed)
        found.append(model_bytes(train(tiny()).run_dir))
    assert found[0] == found[1]
