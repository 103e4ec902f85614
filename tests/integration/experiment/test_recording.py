"""Recorded datasets: what is in them, the same bytes for the same seed, and learning from them."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tiny_envs import AnySpaces

import rl_training
from rl_training.algorithms import ALGORITHMS
from rl_training.cli import main as command
from rl_training.core.errors import ConfigError, UserError
from rl_training.datasets.opening import open_dataset
from support.configs import ONLINE, tiny_config

CATCH = "rl_training.envs.tasks:rl_training/Catch-v0"
LOCKS = "rl_training.envs.tasks:rl_training/Locks-v0"


def agent_of(algo: str, folder: Path, **settings: Any) -> Path:
    """Save an agent with initial weights."""
    model = ALGORITHMS[algo](tiny_config(algo, folder, **settings))
    model.save(folder / "agent")
    return folder / "agent"


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = [tmp_path_factory.mktemp("agents") for _ in range(2)]
    return [agent_of("sac", folder, seed=i, max_episode_steps=30) for i, folder in enumerate(folders)]


@pytest.fixture(scope="module")
def pole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return agent_of("ppo", tmp_path_factory.mktemp("pole"), env_id="CartPole-v1")


def minari_episodes(folder: Path) -> list[Any]:
    minari = pytest.importorskip("minari")
    return list(minari.MinariDataset(folder / "data").iterate_episodes())


def played_by(folder: Path) -> list[str]:
    minari = pytest.importorskip("minari")
    dataset = minari.MinariDataset(folder / "data")
    return [each["behaviour"] for each in dataset.storage.get_episode_metadata(range(dataset.total_episodes))]


@pytest.mark.parametrize("algo", ONLINE)
def test_every_agent_can_be_recorded_and_minari_reads_the_result(algo, tmp_path):
    agent = agent_of(algo, tmp_path)
    folder = rl_training.record(agent, tmp_path / "data set", num_episodes=3)
    episodes = minari_episodes(folder)
    assert [len(each.observations) for each in episodes] == [len(each.rewards) + 1 for each in episodes]
    assert all(each.terminations[-1] | each.truncations[-1] for each in episodes)
    assert open_dataset(str(folder)).num_episodes == 3


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_replaying_the_actions_from_the_seeds_gives_the_same_episodes(data_format, pendulum, tmp_path):
    folder = rl_training.record(pendulum[0], tmp_path / "d", num_episodes=3, data_format=data_format)
    minari = pytest.importorskip("minari")
    dataset = minari.MinariDataset(folder / "data")
    env = dataset.recover_environment()
    assert env.spec.max_episode_steps == 30
    told = list(dataset.storage.get_episode_metadata(range(3)))
    for episode, facts in zip(dataset.iterate_episodes(), told, strict=True):
        seen, paid = [env.reset(seed=facts["seed"])[0]], []
        for action in episode.actions:
            obs, reward, terminated, truncated, _ = env.step(action)
            seen.append(obs)
            paid.append(reward)
        assert np.array_equal(seen, episode.observations)
        np.testing.assert_allclose(paid, episode.rewards)
        assert (terminated, truncated) == (False, True)
        assert episode.truncations.tolist() == [False] * 29 + [True]
        assert not episode.terminations.any()
    assert np.abs(np.concatenate([each.actions for each in dataset.iterate_episodes()])).max() > 1.0


def test_ends_of_the_task_are_terminations(pole, tmp_path):
    for episode in minari_episodes(rl_training.record(pole, tmp_path / "d", num_episodes=4)):
        assert episode.terminations.tolist() == [False] * (len(episode) - 1) + [True]
        assert not episode.truncations.any()


def test_the_same_seed_gives_the_same_files_and_another_seed_others(pendulum, tmp_path):
    settings: dict[str, Any] = {"num_episodes": 4, "noise": 0.3, "random_fraction": 0.3}
    one, two = (rl_training.record(pendulum, tmp_path / f"{i}" / "d", seed=3, **settings) for i in range(2))
    assert {path.name: path.read_bytes() for path in (one / "data").iterdir()} == {
        path.name: path.read_bytes() for path in (two / "data").iterdir()
    }
    other = rl_training.record(pendulum, tmp_path / "other", seed=4, **settings)
    assert open_dataset(str(other)).digest != open_dataset(str(one)).digest


def test_an_episode_depends_on_its_number_not_on_how_many_there_are(pendulum, tmp_path):
    few, many = (
        minari_episodes(rl_training.record(pendulum, tmp_path / f"{n}", num_episodes=n, random_fraction=0.4))
        for n in (2, 6)
    )
    for one, other in zip(few, many, strict=False):
        assert np.array_equal(one.observations, other.observations)
        assert np.array_equal(one.actions, other.actions)


def test_agents_play_as_often_as_their_weights_say(pendulum, tmp_path):
    both = rl_training.record(pendulum, tmp_path / "a", num_episodes=60, weights=[1, 3], random_fraction=0.25)
    names = played_by(both)
    first, second, random = names.count("agent"), names.count("agent (1)"), names.count("random")
    assert first + second + random == 60
    assert 4 <= first <= 20
    assert 22 <= second <= 45
    assert 6 <= random <= 26
    only = rl_training.record(pendulum, tmp_path / "b", num_episodes=5, weights=[0, 1])
    assert set(played_by(only)) == {"agent (1)"}
    alone = rl_training.record(pendulum[1], tmp_path / "c", num_episodes=5)
    last, own = minari_episodes(only)[-1], minari_episodes(alone)[-1]
    assert np.array_equal(last.actions, own.actions)  # it acted, whatever its place in the list


def test_random_episodes_are_uniform_and_noise_has_its_scale(pendulum, tmp_path):
    at_random = rl_training.record(pendulum[0], tmp_path / "r", num_episodes=20, random_fraction=1.0)
    actions = open_dataset(str(at_random)).actions
    assert np.abs(actions).max() <= 1.0
    assert actions.std() == pytest.approx(np.sqrt(1 / 3), rel=0.1)
    plain, noisy = (
        minari_episodes(
            rl_training.record(
                pendulum[0], tmp_path / f"{noise}", num_episodes=30, deterministic=True, noise=noise
            )
        )
        for noise in (0.0, 0.1)
    )
    first = np.array([each.actions[0] for each in noisy]) - np.array([each.actions[0] for each in plain])
    assert first.std() == pytest.approx(0.1 * 2, rel=0.4)  # Pendulum's actions go from -2 to 2


def test_memory_lasts_for_an_episode_and_no_longer(tmp_path):
    agent = agent_of("recurrent_ppo", tmp_path, env_id="CartPole-v1")
    folder = rl_training.record(agent, tmp_path / "d", num_episodes=3, deterministic=True)
    model = rl_training.load(agent)
    for episode in minari_episodes(folder):
        memory = None
        for obs, action in zip(episode.observations, episode.actions, strict=False):
            chosen, memory = model.predict(obs, memory, deterministic=True)
            assert chosen == action


def test_masks_are_kept_and_never_violated(tmp_path):
    for tell in ("info", "entry"):
        agent = agent_of("ppo", tmp_path / tell, env_id=LOCKS, env_kwargs={"tell": tell})
        folder = rl_training.record(agent, tmp_path / tell / "d", num_episodes=6, random_fraction=0.5)
        for episode in minari_episodes(folder):
            kept = episode.infos if tell == "info" else episode.observations
            masks = kept["action_mask"]
            assert len(masks) == len(episode) + 1
            allowed = masks[np.arange(len(episode)), episode.actions.reshape(len(episode))]
            assert allowed.all()
            assert not masks.all()


def test_images_are_kept_without_loss(tmp_path):
    agent = agent_of("dqn", tmp_path, env_id=CATCH, features_dim=8, encoder="auto")
    folder = rl_training.record(agent, tmp_path / "d", num_episodes=2)
    dataset = open_dataset(str(folder))
    assert dataset.recorded_in.env_id == CATCH
    env = gymnasium.make(CATCH)
    (first, *_) = minari_episodes(folder)
    obs, _ = env.reset(seed=json_seed(folder))
    for action, recorded in zip(first.actions, first.observations[1:], strict=True):
        assert np.asarray(obs).dtype == np.uint8
        obs = env.step(action)[0]
        assert np.array_equal(obs, recorded)


def json_seed(folder: Path) -> int:
    minari = pytest.importorskip("minari")
    (facts,) = minari.MinariDataset(folder / "data").storage.get_episode_metadata([0])
    return int(facts["seed"])


NESTED = spaces.Dict(
    {
        "where": spaces.Dict(
            {"x": spaces.Box(-1.0, 1.0, (2,), np.float32), "room": spaces.Discrete(3, start=1)}
        ),
        "held": spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3])]),
        "seen": spaces.Box(0, 255, (4, 4), np.uint8),
    }
)


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_nested_observations_are_nested_as_in_the_environment(data_format, tmp_path):
    def build() -> Any:
        return AnySpaces(NESTED, spaces.MultiDiscrete([2, 3]))

    model = rl_training.PPO(tiny_config("ppo", tmp_path, encoder="flat"), env=build)
    folder = rl_training.record(model, tmp_path / "d", num_episodes=2, data_format=data_format)
    dataset = open_dataset(str(folder))
    assert dataset.observation_space == NESTED
    assert dataset.action_space == spaces.MultiDiscrete([2, 3])
    for episode in minari_episodes(folder):
        assert set(episode.observations) == {"where", "held", "seen"}
        assert episode.observations["where"]["x"].shape == (len(episode) + 1, 2)
        assert [len(part) for part in episode.observations["held"]] == [len(episode) + 1] * 2


def test_observations_are_recorded_before_the_agents_own_normaliser(tmp_path):
    settings: dict[str, Any] = {"env_id": "CartPole-v1", "normalize_obs": True}
    model = rl_training.PPO(tiny_config("ppo", tmp_path, **settings)).learn(progress=False)
    model.save(tmp_path / "agent")
    folder = rl_training.record(tmp_path / "agent", tmp_path / "d", num_episodes=3)
    (episode, *_) = minari_episodes(folder)
    obs, _ = gymnasium.make("CartPole-v1").reset(seed=json_seed(folder))
    assert np.array_equal(episode.observations[0], obs)


def test_a_model_in_memory_is_recorded_as_the_one_on_disk(pole, tmp_path):
    saved = rl_training.record(pole, tmp_path / "a", num_episodes=2)
    model = rl_training.record(rl_training.load(pole), tmp_path / "b", num_episodes=2)
    assert open_dataset(str(saved)).digest == open_dataset(str(model)).digest


def test_record_then_learn_then_predict(pole, tmp_path, capsys):
    words = [
        str(pole),
        "--episodes",
        "20",
        "--to",
        str(tmp_path / "d"),
        "--random-fraction",
        "0.2",
        "--seed",
        "2",
    ]
    assert command(["record", *words]) == 0
    assert "20 episodes" in capsys.readouterr().out
    model = rl_training.BC(dataset=str(tmp_path / "d"), output_dir=str(tmp_path), batch_size=8)
    model.learn(total_updates=8, progress=False)
    assert model.agent.config.env_id == "CartPole-v1"
    assert int(model.predict(np.zeros(4, np.float32))[0]) in (0, 1)
    assert command(["record", *words]) == 0
    assert "complete" in capsys.readouterr().out


def test_the_metadata_say_how_it_was_made(pendulum, tmp_path):
    folder = rl_training.record(pendulum, tmp_path / "made here", num_episodes=2, noise=0.1, seed=5)
    told = json.loads((folder / "data" / "metadata.json").read_text(encoding="utf-8"))
    assert told["dataset_id"] == "made-here-v0"
    assert told["algorithm_name"] == "sac"
    made = told["recording"]
    assert (made["noise"], made["seed"]) == (0.1, 5)
    assert made["environment"]["max_episode_steps"] == 30
    assert len({each["weights_digest"] for each in made["agents"]}) == 2
    assert set(made["versions"]) == {"rl_training", "gymnasium", "numpy", "torch"}
    assert str(tmp_path) not in json.dumps(told)


def test_the_callers_generators_stay_as_they_are(pole, tmp_path):
    np.random.seed(7)
    expected = np.random.random()  # the global generator is the point
    np.random.seed(7)
    rl_training.record(pole, tmp_path / "d", num_episodes=2)
    assert np.random.random() == expected


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"num_episodes": 0}, "num_episodes is 0"),
    ({"noise": -1.0}, "noise is -1.0"),
    ({"noise": float("nan")}, "noise is nan"),
    ({"noise": 0.1}, "not continuous"),
    ({"random_fraction": 1.5}, "from 0 to 1"),
    ({"seed": -1}, "seed is -1"),
    ({"weights": [1.0, 2.0]}, "2 weights for 1 agents"),
    ({"weights": [0.0]}, "not all 0"),
    ({"data_format": "csv"}, "hdf5, arrow"),
    ({"env": "Acrobot-v1"}, "was trained with observation_space"),
    ({"env": "Nothing-v1"}, "Nothing"),
]


@pytest.mark.parametrize(("settings", "said"), WRONG)
def test_bad_input_is_one_error_and_leaves_no_trace(settings, said, pole, tmp_path):
    with pytest.raises((UserError, ConfigError), match=said):
        rl_training.record(pole, tmp_path / "d", **settings)
    assert not list(tmp_path.iterdir())


def test_a_folder_with_other_things_is_refused_and_left_alone(pole, tmp_path):
    (tmp_path / "thesis.txt").write_text("years")
    with pytest.raises(UserError, match=r"contains 'thesis\.txt'"):
        rl_training.record(pole, tmp_path, num_episodes=1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_folder_that_cannot_be_made_is_an_error(pole, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot record into"):
        rl_training.record(pole, tmp_path / "file" / "d", num_episodes=1)


def test_other_settings_are_refused_and_named(pole, pendulum, tmp_path):
    folder = rl_training.record(pole, tmp_path / "d", num_episodes=2)
    before = open_dataset(str(folder)).digest
    with pytest.raises(UserError, match="num_episodes was 2 and is now 3"):
        rl_training.record(pole, folder, num_episodes=3)
    with pytest.raises(UserError, match="agents was"):
        rl_training.record(pendulum[0], folder, num_episodes=2)
    assert open_dataset(str(folder)).digest == before


def test_agents_of_different_environments_are_refused(pendulum, pole, tmp_path):
    with pytest.raises(UserError, match=r"env_id: Pendulum-v1 and CartPole-v1"):
        rl_training.record([pendulum[0], pole], tmp_path / "d", num_episodes=1)
    with pytest.raises(UserError, match="given twice"):
        rl_training.record([pole, pole], tmp_path / "d", num_episodes=1)
    assert not list(tmp_path.iterdir())


def test_an_agent_without_environment_needs_one(tmp_path):
    model = rl_training.BC(tiny_config("bc", tmp_path, env_id="CartPole-v1")).learn(progress=False)
    model.save(tmp_path / "agent")
    assert rl_training.record(tmp_path / "agent", tmp_path / "d", num_episodes=1, env="CartPole-v1").exists()


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_the_folder_may_be_relative(data_format, pole, tmp_path, monkeypatch):
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    rl_training.record(pole, "below/data", num_episodes=2, data_format=data_format)
    assert open_dataset("below/data").num_episodes == 2


def test_the_folder_may_begin_with_a_tilde(pole, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert rl_training.record(pole, "~/data", num_episodes=1) == tmp_path / "data"
    assert open_dataset("~/data").num_episodes == 1
