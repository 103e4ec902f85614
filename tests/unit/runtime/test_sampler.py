import json
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from records import CountingEnv, step_arrays

from rl_training.core.columns import Column
from rl_training.core.rows import Rows
from rl_training.core.types import ActArrays, EnvSpec, EpisodeStats, Progress
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.sources import RolloutSource
from rl_training.envs.stepper import VectorStepper
from rl_training.policies.actor_critic import ActorCriticPolicy
from rl_training.policies.explorers import ActorCriticExplorer
from rl_training.runtime.episodes import RunningEpisodes
from rl_training.runtime.sampler import LocalSampler

SAME, NEXT = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP


def make_stepper(mode: AutoresetMode = SAME, **settings: Any) -> VectorStepper:
    builders = [partial(CountingEnv, lengths=(length,), **settings) for length in (2, 3)]
    stepper = VectorStepper(SyncVectorEnv(builders, autoreset_mode=mode))
    stepper.reset()
    return stepper


def make_policy(spec: EnvSpec) -> ActorCriticPolicy:
    return ActorCriticPolicy(
        spec,
        hidden_sizes=(4,),
        activation="tanh",
        shared_network=False,
        orthogonal_init=False,
        log_std_init=0.0,
        normalize_obs=False,
        reward_normalizer=None,
        generator=torch.Generator().manual_seed(0),
    )


def make_sampler(stepper: VectorStepper, num_steps: int = 6) -> tuple[LocalSampler, RolloutSource]:
    spec = stepper.spec
    buffer = RolloutBuffer.for_spaces(
        spec.observation_space, spec.action_space, num_steps=num_steps, num_envs=spec.num_envs
    )
    source = RolloutSource(buffer, gamma=0.9, gae_lambda=0.9)
    explorer = ActorCriticExplorer(make_policy(spec), np.random.default_rng(0))
    return LocalSampler(stepper, explorer, source), source


def told(episodes: list[EpisodeStats]) -> list[tuple[float, int]]:
    return [(episode.total_reward, episode.length) for episode in episodes]


def test_returns_and_lengths_of_ended_episodes_are_told() -> None:
    running, obs = RunningEpisodes(Rows.one_per_env(2)), np.zeros((2, 1))
    assert running.record(step_arrays(obs, [1.0, 10.0])) == []
    assert told(running.record(step_arrays(obs, [2.0, 20.0], terminated=[True, False]))) == [(3.0, 2)]
    assert told(running.record(step_arrays(obs, [4.0, 40.0], truncated=[False, True]))) == [(70.0, 3)]
    assert told(running.record(step_arrays(obs, [8.0, 80.0], terminated=True))) == [(12.0, 2), (80.0, 1)]


def test_dead_rows_are_not_counted() -> None:
    running, obs = RunningEpisodes(Rows.one_per_env(2)), np.zeros((2, 1))
    assert told(running.record(step_arrays(obs, [1.0, 1.0], terminated=[True, False]))) == [(1.0, 1)]
    assert running.record(step_arrays(obs, [0.0, 1.0], valid=[False, True])) == []
    assert told(running.record(step_arrays(obs, [1.0, 1.0], terminated=True))) == [(1.0, 1), (3.0, 3)]


def test_unfinished_episodes_go_on_counting_unless_their_environment_was_lost() -> None:
    one, other, without = (RunningEpisodes(Rows.one_per_env(3)) for _ in range(3))
    obs = np.zeros((3, 1))
    one.record(step_arrays(obs, [1.0, 2.0, 3.0], terminated=[True, False, False]))
    one.record(step_arrays(obs, [4.0, 5.0, 6.0]))
    state = json.loads(json.dumps(one.state_dict()))
    other.load_state_dict(state)
    without.load_state_dict(state, lost=[1])
    last = step_arrays(obs, [10.0, 10.0, 10.0], terminated=True)
    assert told(other.record(last)) == [(14.0, 2), (17.0, 3), (19.0, 3)]
    assert told(without.record(last)) == [(14.0, 2), (10.0, 1), (19.0, 3)]


@pytest.mark.parametrize(("mode", "counted"), [(SAME, 24), (NEXT, 8 + 9)])
def test_collect_counts_valid_transitions(mode: AutoresetMode, counted: int) -> None:
    sampler, source = make_sampler(make_stepper(mode), num_steps=12)
    collected = sampler.collect(12, Progress())
    assert collected.timesteps == counted
    assert int(source.buffer.valid.sum()) == counted
    assert {episode.length for episode in collected.episodes} == {2, 3}


def test_rows_pair_an_observation_with_what_followed_it() -> None:
    sampler, source = make_sampler(make_stepper())
    sampler.collect(6, Progress())
    buffer = source.buffer
    assert isinstance(buffer.obs, torch.Tensor)
    assert buffer.obs[:, 1].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert buffer.rewards[:, 1].tolist() == [1, 2, 3, 1, 2, 3]  # the reward of step k is k
    assert buffer.dones[:, 1].tolist() == [False, False, True, False, False, True]


def test_truncations_are_bootstrapped_from_the_true_final_observation() -> None:
    stepper = make_stepper(terminates=False, truncates=True)
    sampler, source = make_sampler(stepper)
    sampler.collect(6, Progress())
    policy = sampler.explorer.policy  # type: ignore[attr-defined]
    finals = np.array([[0, 3], [1, 3]], np.float32)  # of the second environment
    np.testing.assert_allclose(source.buffer.final_values[[2, 5], 1], policy.values(finals), rtol=1e-5)
    assert not source.buffer.final_values[~source.buffer.dones].any()


def test_collecting_in_two_halves_is_collecting_at_once() -> None:
    whole, whole_source = make_sampler(make_stepper(), num_steps=8)
    halves, halves_source = make_sampler(make_stepper(), num_steps=8)
    whole.collect(8, Progress())
    halves.collect(4, Progress())
    halves.collect(4, Progress())
    for name in ("obs", "actions", "logprobs", "rewards", "values"):
        assert torch.equal(getattr(whole_source.buffer, name), getattr(halves_source.buffer, name)), name


def pointers(sampler: LocalSampler, source: RolloutSource) -> dict[str, int]:
    found = {
        f"step.{name}": array.ctypes.data
        for name, array in vars(sampler.stepper.out).items()
        if hasattr(array, "ctypes")
    }
    acted = {name: array for name, array in vars(sampler.acted).items() if hasattr(array, "ctypes")}
    found |= {f"acted.{name}": array.ctypes.data for name, array in acted.items()}
    tensors = {name: value for name, value in vars(source.buffer).items() if isinstance(value, torch.Tensor)}
    return found | {f"buffer.{name}": tensor.data_ptr() for name, tensor in tensors.items()}


@pytest.mark.parametrize("mode", [SAME, NEXT])
def test_a_warm_sampler_allocates_no_new_storage(mode: AutoresetMode) -> None:
    sampler, source = make_sampler(make_stepper(mode, terminates=False, truncates=True))
    records = (sampler.stepper.out, sampler.acted)
    before = pointers(sampler, source)
    assert len(before) > 20
    for _ in range(3):
        sampler.collect(6, Progress())
        list(source.batches(Progress()))
    assert pointers(sampler, source) == before
    assert sampler.stepper.out is records[0]
    assert sampler.acted is records[1]


class Noting:
    """An explorer and recorder that writes down who was called when, with the observation it saw."""

    columns = (Column("mood", (2,)),)

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []

    def act(self, obs: Any, acted: ActArrays, progress: Progress) -> None:
        self.calls.append(("act", obs[0, 1]))

    def record_action(self, obs: Any, acted: ActArrays) -> None:
        self.calls.append(("record_action", obs[0, 1]))

    def after_step(self, step: Any, acted: ActArrays) -> None:
        self.calls.append(("after_step", step.obs[0, 1]))

    def record_outcome(self, step: Any, acted: ActArrays) -> None:
        self.calls.append(("record_outcome", step.obs[0, 1]))

    def end_collect(self, *arguments: Any) -> None:
        self.calls.append(("end_collect", len(arguments)))


def test_the_order_of_calls() -> None:
    noting = Noting()
    sampler = LocalSampler(make_stepper(), noting, noting)
    sampler.collect(1, Progress())
    assert sampler.acted.extra["mood"].shape == (2, 2)
    assert noting.calls == [
        ("act", 0.0),
        ("record_action", 0.0),
        ("after_step", 1.0),
        ("record_outcome", 1.0),
        ("end_collect", 2),
        ("end_collect", 1),
    ]
