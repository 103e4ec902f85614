"""A timestep is one valid transition of one environment, however many stand side by side."""

import json
from collections import defaultdict

import numpy as np
import pytest
from tiny_envs import Lottery

from rl_training.algorithms import PPO
from rl_training.envs import make_vector_env
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment.building import build_parts
from rl_training.experiment.start import train
from rl_training.runtime.sampler import LocalSampler


class Ledger:
    """A recorder that keeps its own books of what the environments said."""

    def __init__(self, num_envs: int) -> None:
        self.running = np.zeros(num_envs, int)
        self.finished: list[int] = []
        self.dead_rows = 0
        self._ended = np.zeros(num_envs, bool)

    def record_action(self, obs, acted):
        pass

    def record_outcome(self, step, acted):
        self.dead_rows += int(self._ended.sum())
        self.running += ~self._ended
        self.finished += self.running[step.ended].tolist()
        self.running[step.ended] = 0
        self._ended = step.ended.copy()

    def end_collect(self, acted):
        pass


@pytest.mark.parametrize("num_envs", [1, 3, 4])
def test_native_next_step_autoreset_counts_no_dead_row(tiny, num_envs):
    config = tiny(env_id="CartPole-v1", env_backend="native", num_envs=num_envs, num_steps=100)
    stepper = VectorStepper(make_vector_env(config), seed=config.seed)
    parts = build_parts(config, stepper.spec)
    ledger = Ledger(num_envs)
    sampler = LocalSampler(stepper, parts.actor.explorer, ledger)
    stepper.reset()
    collected = [sampler.collect(100, None), sampler.collect(60, None)]
    counted = sum(part.timesteps for part in collected)
    episodes = [episode for part in collected for episode in part.episodes]
    stepper.close()
    assert ledger.dead_rows >= num_envs  # otherwise this test would say nothing
    assert counted == 160 * num_envs - ledger.dead_rows
    assert counted == sum(ledger.finished) + ledger.running.sum()
    assert [episode.length for episode in episodes] == ledger.finished
    # CartPole pays 1 for every true step, so a dead row would show as a return that differs from the length
    assert all(episode.total_reward == episode.length for episode in episodes)


@pytest.mark.parametrize("num_envs", [1, 2, 4])
def test_the_run_counts_what_the_environments_saw(tiny, num_envs):
    """Recorded lengths plus the unfinished episodes are the counted steps, and those the environments' own."""
    books = defaultdict(list)

    class Counting(Lottery):
        def reset(self, **kwargs):
            books[id(self)].append(0)
            return super().reset(**kwargs)

        def step(self, action):
            books[id(self)][-1] += 1
            return super().step(action)

    built = []

    def make():
        env = Counting()
        built.append(env)
        return env

    config = tiny(env_id="Lottery", num_envs=num_envs, num_steps=64 // num_envs, total_timesteps=192)
    config = config.with_overrides(
        rebuild_envs="off", use_action_masks="off"
    )  # only the run itself is to be counted
    checkpoint = train(config, factory=make).checkpoint_path
    manifest = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))
    training = [books[id(env)] for env in built[:num_envs]]
    assert manifest["progress"]["timesteps"] == 192 == sum(map(sum, training))
    episodes = manifest["state"]["trainer"]["episodes"]
    unfinished = sum(lengths[-1] for lengths in training)
    assert sum(length for _, length, _ in episodes["recent"]) + unfinished == 192
    assert (
        episodes["total_episodes"] == len(episodes["recent"]) == sum(len(lengths) - 1 for lengths in training)
    )


@pytest.mark.parametrize(("num_envs", "num_steps"), [(1, 16), (2, 16), (4, 16), (3, 16)])
def test_the_budget_is_counted_over_environments_and_overshot_by_less_than_a_rollout(
    tiny, num_envs, num_steps
):
    model = PPO(tiny(num_envs=num_envs, num_steps=num_steps, total_timesteps=100)).learn()
    assert 100 <= model.agent.timesteps < 100 + num_envs * num_steps
    assert model.agent.timesteps % (num_envs * num_steps) == 0


@pytest.mark.parametrize("num_envs", [1, 2, 4])
def test_evaluations_checkpoints_and_rows_fall_on_the_same_steps(tiny, rows, num_envs):
    config = tiny(
        num_envs=num_envs, total_timesteps=256, eval_every_timesteps=64, checkpoint_every_timesteps=128,
        log_every_timesteps=64, keep_checkpoints=99,
    )  # fmt: skip
    run_dir = train(config).run_dir
    assert [row["timesteps"] for row in rows(run_dir / "evaluations.jsonl")] == [64, 128, 192, 256]
    assert [row["time/total_timesteps"] for row in rows(run_dir / "metrics.jsonl")] == [64, 128, 192, 256]
    written = {int(path.name.removeprefix("step_")) for path in (run_dir / "checkpoints").glob("step_*")}
    assert {0, 128, 256} <= written  # 0: a run can be resumed from its first instant
    bests = [row["mean_reward"] for row in rows(run_dir / "evaluations.jsonl")]
    improved = {64 * (i + 1) for i, value in enumerate(bests) if value > max(bests[:i], default=-1.0)}
    assert written == {0, 128, 256} | improved


def test_a_rollout_longer_than_the_interval_evaluates_once(tiny, rows):
    config = tiny(num_envs=4, num_steps=16, total_timesteps=192, eval_every_timesteps=16)
    assert [r["timesteps"] for r in rows(train(config).run_dir / "evaluations.jsonl")] == [64, 128, 192]
