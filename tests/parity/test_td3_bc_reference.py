"""The package against examples/td3_bc_reference.py: two implementations, one arithmetic, in float64."""

import contextlib
import io
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from parity_continuous import FragilePendulum, Tensors, assert_same, cloned, split_parameters
from parity_harness import ROOT, DrivenByDataset, load_script, moves, parameters_of

from rl_training.config import TrainConfig, load_config
from rl_training.datasets.opening import open_dataset
from support.datasets import episodes_of, write_minari

pytest.importorskip("minari")
SMALL: dict[str, Any] = {"hidden_sizes": (24, 16), "batch_size": 32, "total_updates": 120, "seed": 7}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("td3_bc_reference")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    env = gymnasium.wrappers.TimeLimit(FragilePendulum(), 15)  # not registered: files cannot name a class
    episodes = episodes_of(env, 20)
    assert 0 < sum(episode["terminations"][-1] for episode in episodes) < 20
    return write_minari(tmp_path_factory.mktemp("data") / "recorded", env, episodes)


def package(args: Any) -> DrivenByDataset:
    names = ("batch_size", "hidden_sizes", "alpha", "gamma", "tau", "policy_delay", "learning_rate")
    config = TrainConfig(algo="td3_bc", dataset=str(args.dataset), held_out_fraction=0.0)
    config = config.with_overrides(
        seed=args.seed, total_updates=args.total_updates, **{name: getattr(args, name) for name in names}
    )
    return DrivenByDataset(config, open_dataset(str(args.dataset)))


def package_tensors(learner: Any) -> Tensors:
    return {
        "actor": parameters_of(learner.policy.network),
        "critics": split_parameters(learner.critics),
        "target actor": parameters_of(learner.target_actor.network),
        "target critics": split_parameters(learner.target_critics.network),
    }


def script_tensors(agent: Any) -> Tensors:
    return {
        "actor": parameters_of(agent.actor),
        "critics": parameters_of(agent.critics),
        "target actor": parameters_of(agent.target_actor),
        "target critics": parameters_of(agent.target_critics),
    }


def test_defaults_are_those_of_the_preset(script: ModuleType) -> None:
    preset, args = load_config(ROOT / "configs" / "td3_bc" / "pendulum_mixed.yaml"), script.Args()
    assert (preset.dataset, preset.normalize_obs) == (str(args.dataset), args.normalize_obs)
    for name in ("total_updates", "seed", "num_eval_episodes"):
        assert getattr(preset, name) == getattr(args, name), name
    for name in ("alpha", "batch_size", "hidden_sizes", "learning_rate", "gamma", "tau", "policy_delay"):
        assert getattr(preset.algorithm, name) == getattr(args, name), name
    for name in ("target_policy_noise", "target_noise_clip"):
        assert getattr(preset.algorithm, name) == getattr(args, name), name


@pytest.mark.parametrize("alpha", [2.5, 0.0])
def test_same_seed_gives_the_same_parameters_after_many_updates(
    script: ModuleType, folder: Path, alpha: float
) -> None:
    args = script.Args(dataset=folder, normalize_obs=False, alpha=alpha, **SMALL)
    agent = script.train(args, script.Data(folder, normalize_obs=False))
    driven = package(args)
    initial = cloned(package_tensors(driven.learner))
    results = driven.train()
    assert len(results) == args.total_updates
    theirs = script_tensors(agent)
    for name, tensors in theirs.items():
        assert max(moves(tensors, initial[name])) > 1e-3, f"{name} learned nothing, so nothing was compared"
    assert_same(package_tensors(driven.learner), theirs, atol=1e-8)


def test_same_batch_gives_the_same_losses(script: ModuleType, folder: Path) -> None:
    args = script.Args(dataset=folder, normalize_obs=False, **SMALL)
    data, driven = script.Data(folder, normalize_obs=False), package(args)
    agent = script.Agent(data.obs.shape[1], data.actions.shape[1], args)
    rngs = [
        np.random.default_rng(script.stream(args.seed, key)) for key in (script.REPLAY, script.UPDATE_NOISE)
    ]
    for update, result in zip(range(4), driven.updates(), strict=False):
        batch = data.batch(args.batch_size, rngs[0])
        noise = torch.from_numpy(rngs[1].standard_normal((args.batch_size, 2)))
        expected = {"critic_loss": script.update_critics(agent, batch, noise, args)}
        if update % 2:
            expected["actor_loss"] = script.update_actor(agent, batch, args)
        assert ("actor_loss" in result.metrics) == (update % 2 == 1)
        for name, loss in expected.items():
            assert abs(float(loss)) > 1e-3
            torch.testing.assert_close(torch.as_tensor(result.metrics[name]), loss, rtol=1e-9, atol=1e-9)


def test_it_runs_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = gymnasium.make("Pendulum-v1", max_episode_steps=20)
    data = write_minari(tmp_path / "recorded", env, episodes_of(env, 4))
    flags = ["--dataset", str(data), "--total-updates", "20", "--num-eval-episodes", "2"]
    path = str(ROOT / "examples" / "td3_bc_reference.py")
    monkeypatch.setattr(sys, "argv", [path, *flags])
    torch.set_default_dtype(torch.float32)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(path, run_name="__main__")
    first, last = printed.getvalue().strip().splitlines()
    assert first.startswith("mean return of the recorded episodes: -")
    assert -2000 < float(last.removeprefix("mean return of 2 evaluation episodes: ")) < 0
