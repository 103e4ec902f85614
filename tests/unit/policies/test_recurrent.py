"""A policy with a memory: when it forgets, what it is asked after the clock, and that learning sees what acting saw."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.components import BuildContext
from rl_training.algorithms.recurrent_ppo import RecurrentPPO, RecurrentPPOConfig
from rl_training.core.columns import allocated
from rl_training.core.types import ActArrays, EnvSpec, Progress, StepArrays
from rl_training.policies.recurrent import RecurrentExplorer, RecurrentPolicy, RunningMemory

ENVS, SIZE = 3, 5
PROGRESS = Progress(total_timesteps=1)
BOX = spaces.Box(-1, 1, (2,), np.float32)


def explorer(core: str = "lstm", **settings: Any) -> RecurrentExplorer:
    config = RecurrentPPOConfig(core=core, core_size=SIZE, **settings)
    actor = RecurrentPPO.build_actor(config, BuildContext(EnvSpec(BOX, spaces.Discrete(2), ENVS), 0))
    assert isinstance(actor.explorer, RecurrentExplorer)
    return actor.explorer


def acted_for(exploring: RecurrentExplorer) -> ActArrays:
    numbers = [np.zeros(ENVS, np.float32) for _ in range(4)]
    return ActArrays(np.zeros(ENVS, np.int64), *numbers, extra=allocated(exploring.columns, ENVS))


def step_of(*, seed: int = 0, **marks: Any) -> StepArrays:
    """Return a step whose rows are neither ended, cut nor dead unless `marks` say so."""
    rng = np.random.default_rng(seed)
    obs, final = (rng.normal(size=(ENVS, 2)).astype(np.float32) for _ in range(2))
    flags = {name: np.zeros(ENVS, np.bool_) for name in ("terminated", "truncated", "ended", "cut")} | {
        "valid": np.ones(ENVS, np.bool_)
    }
    for name, row in marks.items():
        flags[name][row] = name != "valid"
    flags["ended"] = flags["terminated"] | flags["truncated"]
    return StepArrays(
        obs,
        final,
        np.zeros(ENVS),
        any_ended=bool(flags["ended"].any()),
        any_cut=bool(flags["cut"].any()),
        num_valid=int(flags["valid"].sum()),
        **flags,
    )


def lived(exploring: RecurrentExplorer, step: StepArrays) -> tuple[ActArrays, list[Any]]:
    """Act twice, take the step; return what was said and the memory just before it was told what came."""
    acted = acted_for(exploring)
    for seed in (5, 6):
        exploring.act(step_of(seed=seed).obs, acted, PROGRESS)
    before = [part.copy() for part in exploring.memory.parts]
    exploring.after_step(step, acted)
    return acted, before


@pytest.mark.parametrize("mark", ["terminated", "truncated"])
def test_memory_ends_with_an_episode_and_with_that_one_alone(mark: str) -> None:
    exploring = explorer()
    _, before = lived(exploring, step_of(**{mark: 1}))
    for part, was in zip(exploring.memory.parts, before, strict=True):
        assert was.any(axis=1).all()
        assert not part[1].any()
        np.testing.assert_array_equal(part[[0, 2]], was[[0, 2]])
    assert exploring.memory.starts.tolist() == [False, True, False]


def test_a_lost_life_is_remembered() -> None:
    exploring = explorer()
    _, before = lived(exploring, step_of(cut=1))
    for part, was in zip(exploring.memory.parts, before, strict=True):
        np.testing.assert_array_equal(part, was)
    assert not exploring.memory.starts.any()


def test_after_a_dead_row_an_episode_begins() -> None:
    exploring = explorer()
    lived(exploring, step_of(valid=2))
    assert exploring.memory.starts.tolist() == [False, False, True]
    assert not any(part[2].any() for part in exploring.memory.parts)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_a_truncation_is_valued_with_the_memory_after_the_step(core: str, share: bool) -> None:
    exploring = explorer(core, share_core=share)
    step = step_of(truncated=1)
    acted, before = lived(exploring, step)
    final = np.asarray(step.final_obs)[[1]]
    expected = exploring.policy.step(final, tuple(part[[1]] for part in before))[1]
    np.testing.assert_array_equal(acted.final_value[1], expected[0])
    assert acted.final_value[[0, 2]].tolist() == [0.0, 0.0]
    forgotten = exploring.policy.step(final, exploring.policy.initial_state(1))[1]
    assert abs(float(forgotten[0] - expected[0])) > 1e-6


def test_what_is_stored_is_the_memory_before_the_step() -> None:
    exploring, acted = explorer(), None
    acted = acted_for(exploring)
    exploring.act(step_of(seed=1).obs, acted, PROGRESS)
    assert acted.extra["episode_starts"].all()
    assert not acted.extra["memory/0"].any()
    after = [part.copy() for part in exploring.memory.parts]
    exploring.act(step_of(seed=2).obs, acted, PROGRESS)
    assert not acted.extra["episode_starts"].any()
    for number, part in enumerate(after):
        np.testing.assert_array_equal(acted.extra[f"memory/{number}"], part)


def test_asking_for_the_last_value_is_not_remembered() -> None:
    exploring = explorer()
    acted, _ = lived(exploring, step_of())
    before = [part.copy() for part in exploring.memory.parts]
    exploring.end_collect(step_of(seed=3), acted)
    for part, was in zip(exploring.memory.parts, before, strict=True):
        np.testing.assert_array_equal(part, was)
    assert acted.last_value.any()


def test_memory_is_saved_restored_and_forgotten() -> None:
    one, two = explorer(), explorer()
    lived(one, step_of(terminated=0))
    two.load_state_dict(one.state_dict())
    for part, other in zip(one.memory.parts, two.memory.parts, strict=True):
        np.testing.assert_array_equal(part, other)
    np.testing.assert_array_equal(one.memory.starts, two.memory.starts)
    two.forget([1])
    assert two.memory.starts.tolist() == [True, True, False]
    assert not any(part[1].any() for part in two.memory.parts)
    saved = one.memory.state_dict()
    other_number = RunningMemory(one.policy, ENVS + 1)
    other_number.load_state_dict(saved)
    assert other_number.starts.all()
    saved["parts"]["0"] = saved["parts"]["0"][:, :2]
    with pytest.raises(ValueError, match="memory 0 has shape"):
        two.memory.load_state_dict(saved)


@pytest.mark.parametrize(
    "observations", [BOX, spaces.Box(0, 255, (8, 8, 3), np.uint8)], ids=["vector", "image"]
)
def test_acting_step_by_step_equals_learning_on_the_sequence(observations: Any) -> None:
    config = RecurrentPPOConfig(core_size=SIZE, core_layers=2, share_core=False, features_dim=4)
    context = BuildContext(EnvSpec(observations, spaces.Discrete(2), ENVS), 0)
    policy: RecurrentPolicy = RecurrentPPO.build_actor(config, context).policy
    observations.seed(0)
    seen = [np.stack([observations.sample() for _ in range(ENVS)]) for _ in range(6)]
    memory, said = policy.initial_state(ENVS), []
    for step, obs in enumerate(seen):
        if step == 3:
            for part in memory:
                part[1] = 0.0
        *outputs, memory = policy.step(obs, memory)
        said.append(outputs)
    starts = torch.zeros(6, ENVS, dtype=torch.bool)
    starts[3, 1] = True
    inputs = policy.prepare(torch.from_numpy(np.concatenate(seen)))
    zeros = tuple(torch.from_numpy(part) for part in policy.initial_state(ENVS))
    with torch.no_grad():
        params, values, after = policy.network(inputs, memory=zeros, starts=starts.view(-1))
    np.testing.assert_allclose(np.concatenate([p for p, _ in said]), params.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(np.concatenate([v for _, v in said]), values.numpy(), rtol=1e-4, atol=1e-6)
    for part, last in zip(memory, after, strict=True):
        np.testing.assert_allclose(part, last.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_steps": 30}, "num_steps is 30, which sequence_length 16 does not divide"),
        ({"batch_size": 40}, "batch_size is 40, which sequence_length 16 does not divide"),
        ({"core_size": 0}, "core_size is 0"),
        ({"sequence_length": 0}, "sequence_length is 0"),
        ({"shared_network": True, "share_core": False}, "share_core is false, but shared_network is true"),
        ({"share_encoder": False, "share_core": True}, "share_encoder is false, but share_core is true"),
    ],
)
def test_impossible_settings_are_named(changes: dict[str, Any], message: str) -> None:
    config = replace(RecurrentPPOConfig(), **changes)
    assert any(problem.startswith(message) for problem in config.problems(8))
