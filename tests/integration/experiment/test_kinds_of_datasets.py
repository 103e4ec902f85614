"""Runs that learn from tables, from data on disk, and from the replay data of another run."""

import gymnasium
import numpy as np
import pytest

import rl_training
from rl_training.core.errors import UserError
from rl_training.experiment.resume import resume
from rl_training.experiment.run_data import open_named
from rl_training.experiment.run_recording import episodes_in
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback, PauseTraining
from support.configs import tiny_config
from support.datasets import episodes_of, tiny_dataset


def files_of(checkpoint):
    return {path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")}


class PauseAt(Callback):
    def on_update(self, progress, result):
        if progress.updates == 7:
            raise PauseTraining("for a test")


class Watch(gymnasium.Wrapper):
    """Keeps the episodes that a run plays."""

    played: list = []  # noqa: RUF012  # of all environments

    def reset(self, **given):
        obs, info = self.env.reset(**given)
        self.mine = [[obs], [], []]
        Watch.played.append(self.mine)
        return obs, info

    def step(self, action):
        step = self.env.step(action)
        for column, value in zip(self.mine, (step[0], action, step[1]), strict=True):
            column.append(value)
        return step


@pytest.mark.parametrize("algo", ["bc", "td3"])
def test_data_on_disk_gives_the_same_bytes_as_in_memory(algo, tmp_path):
    settings = {"dataset": tiny_dataset("Pendulum-v1"), "total_updates": 16, "env_id": "Pendulum-v1"}
    base = tiny_config("bc", tmp_path, **settings) if algo == "bc" else None
    if base is None:
        base = rl_training.config.TrainConfig(
            algo=algo, num_eval_episodes=1, output_dir=str(tmp_path), **settings
        ).with_overrides(hidden_sizes=(8,), batch_size=8, normalize_obs=True)
    inside, outside = (train(base.with_overrides(max_dataset_memory=limit)) for limit in (None, 1))
    assert files_of(inside.checkpoint_path) == files_of(outside.checkpoint_path)
    paused = train(base.with_overrides(max_dataset_memory=1), callbacks=[PauseAt()])
    assert files_of(resume(paused.run_dir).checkpoint_path) == files_of(inside.checkpoint_path)


def test_a_run_from_a_table_is_resumed_to_the_same_bytes(tmp_path):
    (episode,) = episodes_of(gymnasium.make("Pendulum-v1", max_episode_steps=40), 1)
    seen = np.array(episode.pop("observations"))
    columns = {"observations": seen[:-1], "next_observations": seen[1:], **episode}
    np.savez(tmp_path / "table.npz", **columns)
    config = tiny_config(
        "bc", tmp_path / "runs", dataset=str(tmp_path / "table.npz"), env_id="Pendulum-v1", total_updates=12
    )
    whole = train(config)
    paused = train(config, callbacks=[PauseAt()])
    assert files_of(resume(paused.run_dir).checkpoint_path) == files_of(whole.checkpoint_path)


@pytest.mark.parametrize(("algo", "env_id"), [("sac", "Pendulum-v1"), ("dqn", "CartPole-v1")])
def test_the_replay_data_of_a_run_is_what_it_played(algo, env_id, tmp_path):
    Watch.played.clear()
    model = rl_training.algorithms.ALGORITHMS[algo](
        lambda: Watch(gymnasium.make(env_id, max_episode_steps=15)),
        seed=1, num_envs=3, hidden_sizes=(8,), learning_starts=8, batch_size=8, num_eval_episodes=1,
        output_dir=str(tmp_path),
    ).learn(120)  # fmt: skip
    folder = model.agent.path.parents[1]
    found = open_named(str(folder))
    assert found.num_steps == 120
    played = [[np.float32(column) for column in each] for each in Watch.played if each[1]]
    for number, end in enumerate(found.ends):
        start, steps = end - found.lengths[number], found.lengths[number]
        obs = found.obs[start + number : end + number + 1]
        own = [each for each in played if np.array_equal(each[0][: steps + 1], obs)]
        assert own, "an episode that was not played"
        assert any(np.array_equal(each[2][:steps], found.rewards[start:end]) for each in own)
    terminal = found.terminated[found.ends - 1]
    assert terminal.any() == (algo == "dqn")
    assert found.lengths.max() == 15
    assert np.count_nonzero(~terminal & (found.lengths < 15)) <= 3  # those that the run's end cuts off
    before = files_of(model.agent.path)
    learned = train(tiny_config("bc", tmp_path / "bc", dataset=str(folder), env_id=env_id, total_updates=8))
    assert not learned.paused
    assert files_of(model.agent.path) == before


@pytest.mark.parametrize(
    ("algo", "settings", "culprit"),
    [
        ("ppo", {}, "keeps no replay"),
        ("dqn", {"n_step": 3}, "its n_step is 3"),
        ("dqn", {"gamma": 0.0}, "gamma is 0"),
    ],
)
def test_a_run_whose_replay_data_does_not_fit_is_an_error(algo, settings, culprit, tmp_path):
    run = train(tiny_config(algo, tmp_path / "runs", **settings))
    with pytest.raises(UserError, match=culprit):
        train(tiny_config("bc", tmp_path / "bc", dataset=str(run.run_dir)))
    assert not (tmp_path / "bc").exists()


def test_episodes_are_found_again_in_interleaved_transitions():
    # two environments: 1 2 3 | 7 8 and, truncated after the second step, 4 5 6 | 9
    obs, after = np.array([1, 4, 2, 5, 7, 9]), np.array([2, 5, 3, 6, 8, 1])
    order, ends = episodes_in([obs], [after], np.array([0, 0, 1, 0, 0, 0], np.bool_), num_envs=2)
    assert order.tolist() == [0, 2, 1, 3, 4, 5]
    assert ends.tolist() == [2, 4, 5, 6]
    # a row that comes later than the next step of all environments does not follow
    order, ends = episodes_in(
        [np.array([1, 9, 9, 9, 2])], [np.array([2, 8, 8, 8, 3])], np.zeros(5, np.bool_), 1
    )
    assert len(ends) == 5
