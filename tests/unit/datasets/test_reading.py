"""What is written is read again: every kind of space, format and table."""

import csv

import gymnasium
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from gymnasium import spaces

from rl_training.core.errors import UserError
from rl_training.core.spaces.layout import space_text
from rl_training.core.types import leaves
from rl_training.datasets.builder import collected
from rl_training.datasets.dataset import RecordedIn
from rl_training.datasets.minari_writing import write_minari
from rl_training.datasets.opening import open_dataset, open_recording
from rl_training.datasets.recording import Episode, Recording, merged, split
from rl_training.datasets.tables import TableOptions
from support.datasets import episodes_of
from support.datasets import write_minari as recorded_minari

OBSERVATIONS = {
    "vector": spaces.Box(-1, 1, (3,)),
    "float64": spaces.Box(-1, 1, (2, 2), np.float64),
    "image": spaces.Box(0, 255, (6, 5, 3), np.uint8),
    "number": spaces.Discrete(5),
    "numbers": spaces.MultiDiscrete([3, 4]),
    "bits": spaces.MultiBinary(4),
    "nested": spaces.Dict({"b": spaces.Dict({"c": spaces.Discrete(3)}), "a": spaces.Box(0, 255, (4, 4, 1), np.uint8)}),
    "tuple": spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Dict({"x": spaces.MultiBinary(2)}))),
}  # fmt: skip
ACTIONS = {
    "continuous": spaces.Box(np.float32([-2, 0]), np.float32([2, 10])),
    "matrix": spaces.Box(-1, 1, (2, 2)),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,)),
    "discrete": spaces.Discrete(4, start=3),
    "several": spaces.MultiDiscrete([3, 5], start=[1, 2]),
    "table of choices": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "bits": spaces.MultiBinary(3),
}


def flat(space, value, key=""):
    if isinstance(space, spaces.Dict | spaces.Tuple):
        entries = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        found = {}
        for name, part in entries:
            found |= flat(part, value[name], f"{key}/{name}" if key else str(name))
        return found
    return {key: np.asarray(value)}


def recording_of(obs_space, action_space, lengths=(4, 1, 6)):
    obs_space.seed(1), action_space.seed(2)
    episodes = []
    for number, length in enumerate(lengths):
        rows = [flat(obs_space, obs_space.sample()) for _ in range(length + 1)]
        last = np.arange(length) == length - 1
        episodes.append(
            Episode(
                {key: np.stack([row[key] for row in rows]) for key in rows[0]},
                np.stack([action_space.sample() for _ in range(length)]),
                np.arange(length) + 10.0 * number,
                last & (number % 2 == 0),
                last & (number % 2 == 1),
            )
        )
    return Recording("made", obs_space, action_space, sum(lengths), len(lengths), lambda: iter(episodes))


def same(one, other):
    assert one.digest == other.digest
    for (key, ours), (name, theirs) in zip(leaves(one.obs), leaves(other.obs), strict=True):
        assert key == name
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)
    for name in ("actions", "rewards", "terminated", "ends"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
@pytest.mark.parametrize(
    ("observation", "action"),
    [*((each, "continuous") for each in OBSERVATIONS), *(("vector", each) for each in ACTIONS)],
)
def test_every_space_in_every_format(observation, action, data_format, tmp_path):
    recording = recording_of(OBSERVATIONS[observation], ACTIONS[action])
    write_minari(recording, tmp_path / "data", data_format)
    found = open_dataset(str(tmp_path / "data"))
    same(found, collected(recording))
    assert space_text(found.observation_space) == space_text(OBSERVATIONS[observation])
    assert space_text(found.action_space) == space_text(ACTIONS[action])
    assert list(found.lengths) == [4, 1, 6]


def test_the_environment_is_known_again_and_minari_builds_it(tmp_path):
    import minari

    recording = recording_of(spaces.Box(-1, 1, (3,)), spaces.Box(-2, 2, (1,)))
    where = RecordedIn("Pendulum-v1", {"g": 5.0}, 33)
    made = Recording(**{**vars(recording), "recorded_in": where, "facts": {"algorithm_name": "sac"}})
    write_minari(made, tmp_path / "data")
    found = open_recording(str(tmp_path / "data"))
    assert found.recorded_in == where
    assert found.facts["algorithm_name"] == "sac"
    env = minari.MinariDataset(tmp_path / "data" / "data").recover_environment()
    assert env.unwrapped.g == 5.0
    assert env.spec.max_episode_steps == 33


def test_what_is_not_written_completely_leaves_nothing(tmp_path):
    recording = recording_of(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))

    def interrupted():
        yield next(recording.episodes())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_minari(Recording(**{**vars(recording), "episodes": interrupted}), tmp_path / "data")
    assert list(tmp_path.iterdir()) == []
    write_minari(recording, tmp_path / "data")
    with pytest.raises(UserError, match="exists"):
        write_minari(recording, tmp_path / "data")


# ---------------------------------------------------------------------------------------------------- tables


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    """Return a Minari dataset, and its columns."""
    env = gymnasium.make("Pendulum-v1", max_episode_steps=7)
    episodes = episodes_of(env, 3)
    folder = recorded_minari(tmp_path_factory.mktemp("pendulum") / "data", env, episodes)
    seen = [np.array(each["observations"]) for each in episodes]
    columns = {
        "observations": np.concatenate([each[:-1] for each in seen]),
        "next_observations": np.concatenate([each[1:] for each in seen]),
        "episode_id": np.repeat(np.arange(3), 7),
    }
    for name in ("actions", "rewards", "terminations", "truncations"):
        columns[name] = np.concatenate([np.array(each[name]) for each in episodes])
    return open_dataset(str(folder)), columns


def save(columns, path):
    if path.suffix == ".npz":
        np.savez(path, **columns)
    elif path.suffix == ".parquet":
        parquet.write_table(pa.table({key: list(each) for key, each in columns.items()}), path)
    else:
        wide = {}
        for key, each in columns.items():
            parts = {key: each} if each.ndim == 1 else {f"{key}_{n}": part for n, part in enumerate(each.T)}
            wide |= parts
        with path.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(wide)
            rows.writerows(zip(*(each.tolist() for each in wide.values()), strict=True))
    return str(path)


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
def test_a_table_is_the_same_dataset(suffix, pendulum, tmp_path):
    expected, columns = pendulum
    found = open_dataset(save(columns, tmp_path / f"t{suffix}"), spaces=spaces_of(expected))
    same(found, expected)
    assert found.remarks == ()


def spaces_of(dataset):
    return dataset.observation_space, dataset.action_space


@pytest.mark.parametrize(
    "names",
    [
        {
            "observations": "obs",
            "next_observations": "next_obs",
            "actions": "act",
            "terminations": "terminals",
            "truncations": "timeouts",
        },
        {
            "observations": "state",
            "next_observations": "next_state",
            "actions": "action",
            "rewards": "reward",
            "episode_id": "trajectory",
        },
    ],
)
def test_usual_names_of_columns(names, pendulum, tmp_path):
    expected, columns = pendulum
    renamed = {names.get(key, key): each for key, each in columns.items()}
    same(open_dataset(save(renamed, tmp_path / "t.npz"), spaces=spaces_of(expected)), expected)


def test_named_columns_and_bounds(pendulum, tmp_path):
    expected, columns = pendulum
    renamed = {f"my {key}": each for key, each in columns.items()}
    options = TableOptions(**{key: f"my {key}" for key in columns}, action_low=(-2.0,), action_high=(2.0,))
    path = save(renamed, tmp_path / "t.npz")
    found = collected(open_recording(path, options=options))
    assert np.array_equal(found.actions, expected.actions)
    assert found.action_space == expected.action_space
    with pytest.raises(UserError, match=r"there is no column 'rewarsd'; did you mean 'rewards'\?"):
        open_recording(save(columns, tmp_path / "u.npz"), options=TableOptions(rewards="rewarsd"))


def test_without_next_observations_the_last_step_of_truncated_episodes_is_dropped(pendulum, tmp_path):
    expected, columns = pendulum
    del columns["next_observations"]
    found = open_dataset(save(columns, tmp_path / "t.npz"), spaces=spaces_of(expected))
    assert list(found.lengths) == [6, 6, 6]
    rows = np.flatnonzero(np.arange(24) % 8 != 7)
    assert np.array_equal(found.obs, expected.obs[rows])
    assert "the last step of 3 truncated episode(s) has no successor and was dropped" in found.remarks[0]
    terminated = columns | {"terminations": columns["truncations"], "truncations": np.zeros(21, np.bool_)}
    kept = open_dataset(save(terminated, tmp_path / "u.npz"), spaces=spaces_of(expected))
    assert list(kept.lengths) == [7, 7, 7]
    assert np.array_equal(kept.rewards, expected.rewards)
    assert np.array_equal(kept.terminated, terminated["terminations"])
    assert kept.remarks == ()


def test_dones_that_include_time_limits_are_not_all_terminal(tmp_path):
    columns = {
        "observations": np.arange(4.0), "next_observations": np.arange(1.0, 5.0), "actions": np.array([0, 1, 1, 0]),
        "rewards": np.ones(4), "dones": np.array([0, 1, 0, 1]), "timeouts": np.array([0, 1, 0, 0]),
    }  # fmt: skip
    found = open_dataset(save(columns, tmp_path / "t.npz"))
    assert found.terminated.tolist() == [False, False, False, True]
    assert found.action_space == spaces.Discrete(2)
    assert found.observation_space.shape == (1,)


def test_entries_of_dict_observations_and_images(tmp_path):
    image = np.arange(4 * 5 * 5 * 3, dtype=np.uint8).reshape(4, 5, 5, 3)
    columns = {
        "observations/camera": image, "observations/arm_0": np.arange(4.0), "observations/arm_1": np.ones(4),
        "observations/mode": np.array([0, 2, 1, 0]), "actions": np.ones((4, 2)), "rewards": np.ones(4),
        "terminations": np.array([0, 1, 0, 1]),
    }  # fmt: skip
    found = open_dataset(save(columns, tmp_path / "t.npz"))
    assert set(found.obs) == {"arm", "camera", "mode"}
    assert found.observation_space["camera"] == spaces.Box(0, 255, (5, 5, 3), np.uint8)
    assert found.observation_space["mode"] == spaces.Discrete(3)
    assert np.array_equal(found.obs["camera"], image[[0, 1, 1, 2, 3, 3]])
    assert found.obs["arm"][:2].tolist() == [[0.0, 1.0], [1.0, 1.0]]
    struct = pa.array([{"a": [1.0, 2.0], "b": 1}, {"a": [3.0, 4.0], "b": 0}])
    parquet.write_table(
        pa.table({"obs": struct, "actions": [0, 1], "rewards": [0.0, 1.0], "done": [False, True]}),
        tmp_path / "t.parquet",
    )
    found = open_dataset(str(tmp_path / "t.parquet"))
    assert found.obs["a"].tolist() == [[1.0, 2.0], [3.0, 4.0], [3.0, 4.0]]
    assert found.obs["b"].tolist() == [1, 0, 0]


# ------------------------------------------------------------------------------------------- merge and split


def test_merged_and_split():
    one = recording_of(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), (3, 2, 4, 1))
    both = merged([one, one], "both")
    assert list(collected(both).lengths) == [3, 2, 4, 1, 3, 2, 4, 1]
    parts = split(both, [0.75, 0.25], 5, ["a", "b"])
    lengths = [list(collected(part).lengths) for part in parts]
    assert [len(each) for each in lengths] == [6, 2]
    assert sorted([*lengths[0], *lengths[1]]) == [1, 1, 2, 2, 3, 3, 4, 4]
    again = split(both, [0.75, 0.25], 5, ["a", "b"])
    assert [collected(part).digest for part in again] == [collected(part).digest for part in parts]
    others = {collected(split(both, [0.75, 0.25], seed, ["a", "b"])[0]).digest for seed in range(8)}
    assert len(others) > 1
    with pytest.raises(UserError, match="add up to 1"):
        split(both, [0.5, 0.2], 0, ["a", "b"])
    with pytest.raises(UserError, match="would be empty"):
        split(one, [0.95, 0.05], 0, ["a", "b"])
    other = recording_of(spaces.Box(-1, 1, (3,)), spaces.Discrete(3))
    with pytest.raises(UserError, match="action spaces are"):
        merged([one, other], "both")
