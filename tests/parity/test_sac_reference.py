"""The package against examples/sac_pendulum_reference.py: two implementations, one arithmetic, in float64."""

from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from parity_continuous import (
    FRAGILE,
    SMALL,
    Tensors,
    assert_same,
    cloned,
    package_gradients,
    random_batch,
    script_gradients,
    shift_both,
    split_parameters,
    transitions,
)
from parity_harness import ROOT, Package, load_script, moves, parameters_of, printed_return

from rl_training.algorithms.sac import SACConfig, SACLearner
from rl_training.config import load_config
from rl_training.models.ensemble import EnsembleMLP

OPTIMIZERS = ("actor", "critic", "alpha")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("sac_pendulum_reference")


def package(args: Any) -> Package:
    return Package("sac", SACConfig, args)


def package_tensors(learner: SACLearner) -> Tensors:
    critics, target = learner.critics, learner.target_critics.network
    assert isinstance(target, EnsembleMLP)
    return {
        "actor": parameters_of(learner.policy.network),
        "critics": split_parameters(critics),
        "target critics": split_parameters(target),
        "log alpha": [learner.temperature.log_alpha.detach()],
    }


def script_tensors(agent: Any) -> Tensors:
    return {
        "actor": parameters_of(agent.actor),
        "critics": parameters_of(agent.critics),
        "target critics": parameters_of(agent.target_critics),
        "log alpha": [agent.log_alpha.detach()],
    }


def test_defaults_are_those_of_the_preset(script: ModuleType) -> None:
    preset = load_config(ROOT / "configs" / "sac" / "pendulum.yaml")
    assert isinstance(preset.algorithm, SACConfig)
    known = asdict(preset) | asdict(preset.algorithm)
    settings = asdict(script.Args())
    del settings["max_episode_steps"]  # the script's own
    assert len(settings) > 8
    # what the script has no switch for
    fixed = {"num_critics": 2, "n_step": 1, "train_freq": 1, "gradient_steps": 1, "activation": "relu"}
    fixed |= {"num_envs": 1, "normalize_obs": False, "normalize_reward": False}
    fixed |= {"ent_coef": None, "ent_coef_init": 1.0, "target_entropy": None, "critic_subset": None}
    fixed |= {"learning_rate_schedule": "constant"}
    expected = settings | fixed
    assert {name: known[name] for name in expected} == expected


@pytest.mark.parametrize("env_id", ["Pendulum-v1", FRAGILE])
def test_same_seed_gives_the_same_initial_parameters(script: ModuleType, env_id: str) -> None:
    args = script.Args(env_id=env_id, seed=5, **SMALL)
    env = script.Env(args)
    agent = script.Agent(env.obs_size, env.action_size, args)
    theirs = script_tensors(agent)
    assert max(moves(agent.critics[0].parameters(), agent.critics[1].parameters())) > 0.1, (
        "the critics differ"
    )
    assert_same(package_tensors(package(args).learner), theirs, atol=0)


def test_same_batch_gives_the_same_losses_gradients_and_step(script: ModuleType) -> None:
    size = 200
    args = script.Args(env_id=FRAGILE, seed=3, **SMALL | {"batch_size": size})
    parts = package(args)
    learner = parts.learner
    agent = script.Agent(3, 2, args)
    rng = np.random.default_rng(0)
    # away from the start, where targets equal their critics and the temperature is 1
    shift_both(package_tensors(learner), script_tensors(agent), rng)
    batch = random_batch(rng, size)
    before = cloned(package_tensors(learner))
    assert_same(before, script_tensors(agent), atol=0)
    assert max(moves(before["critics"], before["target critics"])) > 0.1

    noise = np.random.default_rng(9).standard_normal((2, size, 2))
    learner.noise_rng = np.random.default_rng(9)
    reference = script.update(agent, batch, *torch.from_numpy(noise), args)
    metrics = learner.update(transitions(batch, args.gamma), parts.progress).metrics
    names = {"critic_loss": "critic_loss", "actor_loss": "actor_loss", "ent_coef_loss": "alpha_loss"}
    for ours_name, theirs_name in names.items():
        assert abs(float(reference[theirs_name])) > 1e-3
        torch.testing.assert_close(metrics[ours_name], reference[theirs_name], rtol=0, atol=1e-10)
    assert_same(package_gradients(learner, OPTIMIZERS), script_gradients(agent, OPTIMIZERS), atol=1e-10)
    after = package_tensors(learner)
    for name, tensors in after.items():
        assert max(moves(tensors, before[name])) > 1e-4, f"{name} did not move"
    assert_same(after, script_tensors(agent), atol=1e-10)


@pytest.mark.parametrize(
    ("env_id", "buffer_size"),
    [("Pendulum-v1", 1000), (FRAGILE, 150)],
    ids=["time-limits", "ends-and-full-ring"],
)
def test_same_seed_gives_the_same_parameters_after_many_updates(
    script: ModuleType, env_id: str, buffer_size: int
) -> None:
    args = script.Args(env_id=env_id, buffer_size=buffer_size, total_timesteps=400, seed=7, **SMALL)
    agent, _ = script.train(args)
    parts = package(args)
    initial = cloned(package_tensors(parts.learner))
    parts.train()
    assert parts.progress.updates == 400 - SMALL["learning_starts"]
    assert parts.stepper.truncations >= 3, "the comparison must cover truncated episodes"
    assert parts.stepper.terminations >= 3 or env_id != FRAGILE, "the comparison must cover finished tasks"
    theirs = script_tensors(agent)
    for name, tensors in theirs.items():
        assert max(moves(tensors, initial[name])) > 1e-2, f"{name} learned nothing, so nothing was compared"
    assert_same(package_tensors(parts.learner), theirs, atol=1e-8)


def test_it_runs_from_the_command_line(tmp_path: Path) -> None:
    flags = ("--total-timesteps", "220", "--learning-starts", "200")
    assert -2000 < printed_return("sac_pendulum_reference", tmp_path, *flags) < 0
