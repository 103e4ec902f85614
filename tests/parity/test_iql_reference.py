"""The package against examples/iql_reference.py: two implementations, one arithmetic, in float64."""

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from parity_continuous import (
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
from parity_harness import ROOT, DrivenByDataset, load_script, moves, parameters_of

from rl_training.algorithms.iql import IQLConfig, IQLLearner
from rl_training.config import TrainConfig, load_config
from rl_training.core.types import Progress
from rl_training.datasets.opening import open_dataset
from rl_training.models.ensemble import EnsembleMLP
from support.datasets import tiny_dataset

OPTIMIZERS = ("actor", "critic", "value")
SMALL: dict[str, Any] = {"hidden_sizes": (16, 12), "batch_size": 20, "learning_rate": 3e-3, "tau": 0.05}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("iql_reference")


def package(args: Any) -> DrivenByDataset:
    given = asdict(args)
    del given["num_eval_episodes"]
    config = TrainConfig(algo="iql", dataset=given.pop("dataset")).with_overrides(
        held_out_fraction=0.0, **given
    )
    return DrivenByDataset(config, open_dataset(args.dataset))


def package_tensors(learner: IQLLearner) -> Tensors:
    target = learner.target_critics.network
    assert isinstance(target, EnsembleMLP)
    assert isinstance(learner.critics, EnsembleMLP)
    return {
        "actor": [*parameters_of(learner.policy.network), *parameters_of(learner.policy.head)],  # type: ignore[arg-type]
        "critics": split_parameters(learner.critics),
        "value": parameters_of(learner.value),
        "target critics": split_parameters(target),
    }


def script_tensors(agent: Any) -> Tensors:
    return {
        "actor": [*parameters_of(agent.actor), agent.log_std.detach()],
        "critics": parameters_of(agent.critics),
        "value": parameters_of(agent.value),
        "target critics": parameters_of(agent.target_critics),
    }


def test_defaults_are_those_of_the_preset(script: ModuleType) -> None:
    preset = load_config(ROOT / "configs" / "iql" / "pendulum_mixed.yaml")
    assert isinstance(preset.algorithm, IQLConfig)
    known, settings = asdict(preset) | asdict(preset.algorithm), asdict(script.Args())
    assert settings == {name: known[name] for name in settings}


def test_same_batch_gives_the_same_losses_gradients_and_step(script: ModuleType) -> None:
    size = 200
    args = script.Args(dataset=tiny_dataset("Pendulum-v1"), seed=3, **SMALL | {"batch_size": size})
    learner: Any = package(args).learner
    agent = script.Agent(3, 1, args)
    rng = np.random.default_rng(0)
    shift_both(package_tensors(learner), script_tensors(agent), rng)
    batch = random_batch(rng, size)
    batch["actions"] = batch["actions"][:, :1]
    before = cloned(package_tensors(learner))
    assert_same(before, script_tensors(agent), atol=0)
    losses = script.update(agent, batch, args)
    metrics = learner.update(transitions(batch, args.gamma), Progress(total_updates=10)).metrics
    for name, reference in losses.items():
        assert abs(float(reference)) > 1e-3
        torch.testing.assert_close(metrics[f"{name}_loss"], reference, rtol=1e-10, atol=1e-10)
    assert_same(package_gradients(learner, OPTIMIZERS), script_gradients(agent, OPTIMIZERS), atol=1e-9)
    after = package_tensors(learner)
    for name, tensors in after.items():
        assert max(moves(tensors, before[name])) > 1e-4, f"{name} did not move"
    assert_same(after, script_tensors(agent), atol=1e-10)


def test_same_seed_gives_the_same_parameters_after_many_updates(script: ModuleType) -> None:
    args = script.Args(dataset=tiny_dataset("Pendulum-v1"), total_updates=150, seed=7, **SMALL)
    parts = package(args)
    initial = cloned(package_tensors(parts.learner))
    agent = script.train(args, script.Data(args.dataset))
    parts.train()
    assert parts.progress.updates == 150
    theirs = script_tensors(agent)
    for name, tensors in theirs.items():
        assert max(moves(tensors, initial[name])) > 1e-2, f"{name} learned nothing, so nothing was compared"
    assert_same(package_tensors(parts.learner), theirs, atol=1e-8)


def test_it_runs_from_the_command_line(tmp_path: Path) -> None:
    flags = ["--dataset", tiny_dataset("Pendulum-v1"), "--total-updates", "20", "--num-eval-episodes", "1"]
    command = [sys.executable, str(ROOT / "examples" / "iql_reference.py"), *flags]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    text, _, number = done.stdout.strip().splitlines()[-1].rpartition(" ")
    assert text == "mean return of 1 evaluation episodes:"
    assert -2000 < float(number) < 0
    assert list(tmp_path.iterdir()) == []
