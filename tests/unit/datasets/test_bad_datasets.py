"""Datasets that cannot be learned from: one error that names the problem, nothing written, and no code run."""

import json
import os
import sys
import zipfile
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.datasets.opening import open_dataset
from rl_training.experiment.start import train
from support.datasets import episodes_of, write_minari

STEPS = 12


def columns(**changes):
    """Return the columns of three episodes of four steps; None leaves a column out."""
    found = {
        "observations": np.arange(36, dtype=np.float32).reshape(12, 3),
        "actions": np.linspace(-1, 1, 12)[:, None],
        "rewards": np.ones(12),
        "terminations": np.tile([False, False, False, True], 3),
        "truncations": np.zeros(12, np.bool_),
    }
    return {name: value for name, value in (found | changes).items() if value is not None}


def npz(**changes):
    def write(folder):
        np.savez(folder / "bad.npz", **columns(**changes))
        return folder / "bad.npz"

    return write


def csv(text):
    def write(folder):
        (folder / "bad.csv").write_text(text, encoding="utf-8")
        return folder / "bad.csv"

    return write


def parquet_of(**arrays):
    def write(folder):
        parquet.write_table(pa.table(arrays), folder / "bad.parquet")
        return folder / "bad.parquet"

    return write


def changed(array, place, value):
    copy = np.array(array)
    copy[place] = value
    return copy


def good(folder, data_format="hdf5", env_id="Pendulum-v1"):
    env = gymnasium.make(env_id, max_episode_steps=5)
    return write_minari(folder / "bad", env, episodes_of(env, 3), data_format)


def metadata(change, data_format="hdf5"):
    def write(folder):
        path = good(folder, data_format)
        file = path / "data" / "metadata.json"
        found = json.loads(file.read_text())
        file.write_text(json.dumps(change(found)))
        return path

    return write


def hdf5(change):
    def write(folder):
        path = good(folder)
        with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
            change(file, folder)
        return path

    return write


def replaced(name, values):
    def change(file, folder):
        del file[name]
        file[name] = values

    return hdf5(change)


def content(name, data, data_format="hdf5"):
    def write(folder):
        path = good(folder, data_format)
        (file,) = list((path / "data").rglob(name))[:1]
        file.write_bytes(data(file.read_bytes()))
        return path

    return write


def pickled(folder):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(folder / "evil"),))

    np.savez(folder / "bad.npz", **columns(observations=np.array([Evil()] * 12, dtype=object)))
    return folder / "bad.npz"


def lying_npz(folder):
    path = npz()(folder)
    with zipfile.ZipFile(path, "a") as archive, archive.open("huge.npy", "w") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**13,)}
        np.lib.format.write_array_header_1_0(file, header)
    return path


def unfinished_recording(folder):
    (folder / "recording.json").write_text("{}")
    (folder / "episodes").mkdir()
    return folder


def unreadable(folder):
    path = npz()(folder)
    path.chmod(0)
    if os.access(path, os.R_OK):  # root may read everything
        path.unlink()
        os.mkfifo(path)
    return path


def external_link(file, folder):
    (folder / "secret.hdf5").write_bytes(b"")
    del file["episode_0/rewards"]
    file["episode_0/rewards"] = h5py.ExternalLink(str(folder / "secret.hdf5"), "rewards")


def external_storage(file, folder):
    (folder / "secret").write_bytes(bytes(40))
    del file["episode_0/rewards"]
    file["episode_0"].create_dataset("rewards", (5,), "f8", external=[(str(folder / "secret"), 0, 40)])


def huge_entry(file, folder):
    del file["episode_0/rewards"]
    file["episode_0"].create_dataset("rewards", (10**12,), "f8", chunks=(1024,))


def without_spaces(found):
    found["env_spec"] = json.dumps(
        {"id": "evil_module_of_a_test:Env-v0", "entry_point": "evil_module_of_a_test:Env"}
    )
    return {key: value for key, value in found.items() if key != "action_space"}


def described(key, **changes):
    return metadata(lambda found: found | {key: json.dumps(json.loads(found[key]) | changes)})


FIVE = np.zeros(5)
BAD = {
    # tables
    "no observations": (npz(observations=None), "no column for observations"),
    "no actions": (npz(actions=None), "no column for actions"),
    "no rewards": (npz(rewards=None), "no column for rewards"),
    "no ends": (npz(terminations=None, truncations=None), "no column for terminations"),
    "columns of different lengths": (npz(rewards=np.ones(11)), "different lengths: .*rewards 11"),
    "NaN in observations": (
        npz(observations=changed(columns()["observations"], (5, 1), np.nan)),
        "episode 1: observations are not finite.* at step 1",
    ),
    "infinite rewards": (
        npz(rewards=changed(np.ones(12), 3, np.inf)),
        "episode 0: rewards are not finite.* at step 3",
    ),
    "rewards that 32 bits cannot hold": (
        npz(rewards=changed(np.ones(12), 3, 1e300)),
        "rewards are not finite, or too large",
    ),
    "NaN in actions": (npz(actions=changed(columns()["actions"], 3, np.nan)), "actions are not finite"),
    "actions without bounds": (
        npz(actions=np.linspace(-2, 2, 12)[:, None]),
        "actions are between -2 and 2, and their bounds are unknown",
    ),
    "negative discrete actions": (npz(actions=np.arange(-1, 11)), "whole numbers below 0"),
    "rewards per dimension": (npz(rewards=np.ones((12, 2))), "rewards have shape"),
    "terminations that are not flags": (npz(terminations=np.arange(12)), "terminations are neither 0 nor 1"),
    "terminations as text": (
        npz(terminations=np.array(["False"] * 12)),
        "terminations are text instead of numbers",
    ),
    "complex observations": (
        npz(observations=np.ones((12, 3), np.complex64)),
        "observations are complex64 instead of numbers",
    ),
    "no end": (npz(terminations=np.zeros(12, np.bool_)), "the last episode has no end"),
    "an end inside of an episode": (
        npz(episode_id=np.zeros(12)),
        "step 3 is an end, but the episode goes on",
    ),
    "episode without an end": (
        npz(episode_id=np.repeat([0, 1, 2], 4), terminations=changed(columns()["terminations"], 3, False)),
        "episode 0: it has no end",
    ),
    "episode ids that return": (npz(episode_id=np.repeat([0, 1, 0], 4)), "episode id 0 returns"),
    "next observations that do not follow": (
        npz(next_observations=np.ones((12, 3))),
        "next_observations of step 0 are not",
    ),
    "no rows": (npz(**{name: array[:0] for name, array in columns().items()}), "it has no rows"),
    "pickled objects": (pickled, "'observations' holds Python objects, which are never loaded"),
    "an array larger than its file": (lying_npz, "'huge' announces 80,000,000,000,000 bytes"),
    "truncated .npz": (lambda folder: cut(npz()(folder)), "cannot be read"),
    "unreadable": (unreadable, "cannot be read|neither a file"),
    "unknown suffix": (lambda folder: renamed(npz()(folder), "bad.json"), "suffix '.json'"),
    "CSV with text": (
        csv("observations_0,actions,rewards,terminations\nlow,0,1,True\n"),
        "observations are text",
    ),
    "CSV with missing values": (
        csv("observations_0,actions,rewards,terminations\n1,,1,False\n2,1,1,True\n"),
        "'actions' has 1 missing value",
    ),
    "CSV with a column twice": (
        csv("observations_0,actions,actions,rewards,terminations\n1,1,1,1,1\n"),
        "several columns 'actions'",
    ),
    "CSV with a short row": (csv("observations_0,actions,rewards,terminations\n1,1\n"), "cannot be read"),
    "empty CSV": (csv(""), "cannot be read"),
    "CSV with a header only": (csv("observations_0,actions,rewards,terminations\n"), ": it has no rows"),
    "Parquet with ragged vectors": (
        parquet_of(
            observations=[[1.0], [1.0, 2.0]], actions=[0, 1], rewards=[0.0, 1.0], terminations=[False, True]
        ),
        "lists of different lengths",
    ),
    "damaged Parquet": (
        lambda folder: cut(
            parquet_of(observations=[1.0], actions=[0], rewards=[0.0], terminations=[True])(folder)
        ),
        "cannot be read",
    ),
    # Minari
    "NaN in an episode": (
        replaced("episode_1/rewards", changed(FIVE, 2, np.nan)),
        "episode 1: rewards are not finite.* at step 2",
    ),
    "actions out of bounds": (
        replaced("episode_0/actions", np.full((5, 1), 3.0)),
        r"actions are outside of the bounds -2 to 2: 3.0 at step 0",
    ),
    "too few observations": (
        replaced("episode_2/observations", np.zeros((5, 3))),
        r"episode 2: observations have shape \(5, 3\) instead of \(6, 3\)",
    ),
    "text rewards": (replaced("episode_0/rewards", np.array([b"a"] * 5)), "rewards are not numbers"),
    "an empty episode": (replaced("episode_0/rewards", np.zeros(0)), "episode 0: it has no steps"),
    "a missing entry": (hdf5(lambda file, folder: file.__delitem__("episode_0/actions")), "cannot be read"),
    "a missing episode": (hdf5(lambda file, folder: file.__delitem__("episode_2")), "cannot be read"),
    "a link to another file": (hdf5(external_link), "'episode_0/rewards' refers to another place"),
    "data in another file": (hdf5(external_storage), "'episode_0/rewards' is stored in another file"),
    "an entry larger than its file": (
        hdf5(huge_entry),
        "'episode_0/rewards' announces 8,000,000,000,000 bytes",
    ),
    "damaged HDF5": (content("main_data.hdf5", lambda data: data[:100]), "cannot be read"),
    "damaged Arrow": (content("*.arrow", lambda data: b"\0" * len(data), "arrow"), "cannot be read"),
    "damaged JSON": (content("metadata.json", lambda data: data[:20]), "metadata.json cannot be read"),
    "JSON of something else": (
        content("metadata.json", lambda data: b"[1]"),
        "is not a description of a dataset",
    ),
    "deep JSON": (content("metadata.json", lambda data: b"[" * 100_000), "cannot be read"),
    "an environment's module instead of spaces": (metadata(without_spaces), "there is no action_space"),
    "more steps than there are": (
        metadata(lambda found: found | {"total_steps": 20}),
        "15 steps in 3 episodes, but the files",
    ),
    "fewer steps than there are": (
        metadata(lambda found: found | {"total_steps": 14}),
        "more steps than the files announce",
    ),
    "a huge number of steps": (
        metadata(lambda found: found | {"total_steps": 10**13}),
        "announces 10,000,000,000,000 steps",
    ),
    "no number of episodes": (
        metadata(lambda found: found | {"total_episodes": "3"}),
        "total_episodes is '3'",
    ),
    "a huge space": (
        described("observation_space", shape=[10**9], low=0.0, high=1.0),
        "observation_space: it has 1,000,000,000 numbers",
    ),
    "an unknown format": (
        metadata(lambda found: found | {"data_format": "../../x"}),
        "data_format is '../../x'",
    ),
    "no episodes": (
        metadata(lambda found: found | {"total_episodes": 0, "total_steps": 0}),
        "it has no episodes",
    ),
    # places
    "an unfinished recording": (unfinished_recording, "unfinished recording; repeat its command"),
    "an empty folder": (lambda folder: folder, "folder without a dataset"),
    "nothing": (lambda folder: folder / "none.npz", "does not exist"),
    "an id outside of Minari's folder": (
        lambda folder: "../../secret",
        "'../../secret' does not exist in /",
    ),
}


def cut(path):
    path.write_bytes(path.read_bytes()[:-80])
    return path


def renamed(path, name):
    return path.rename(path.with_name(name))


def test_there_are_many_kinds():
    assert len(BAD) >= 25


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_dataset_is_one_error_before_a_run_leaves_a_trace(kind, tmp_path):
    write, culprit = BAD[kind]
    (tmp_path / "data").mkdir()
    name = str(write(tmp_path / "data"))
    config = TrainConfig(algo="bc", dataset=name, output_dir=str(tmp_path / "runs"))
    with pytest.raises(UserError, match=culprit):
        train(config)
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "data" / "evil").exists()
    assert "evil_module_of_a_test" not in sys.modules


def test_all_problems_are_in_one_error(tmp_path):
    np.savez(tmp_path / "bad.npz", rewards=np.ones(3))
    with pytest.raises(UserError) as raised:
        open_dataset(str(tmp_path / "bad.npz"))
    for word in ("observations", "actions", "terminations"):
        assert f"there is no column for {word}" in str(raised.value)


def test_a_table_that_does_not_fit_the_named_environment(tmp_path):
    path = npz()(tmp_path)
    config = TrainConfig(
        algo="bc", dataset=str(path), env_id="CartPole-v1", output_dir=str(tmp_path / "runs")
    )
    with pytest.raises(UserError, match=r"observations have shape \(5, 3\) instead of \(5, 4\)"):
        train(config)
    assert not Path(config.output_dir).exists()
