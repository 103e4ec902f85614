"""Algorithms in games whose agents wait or die: what they are built with, what they learn from, and that they learn."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.types import ActArrays, Progress
from rl_training.data.block_recorder import BlockRecorder, block_columns
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.sources import ReplaySource, RolloutSource
from rl_training.data.turn_window import TurnWindow
from rl_training.experiment.building import build_parts
from rl_training.runtime.sampler import LocalSampler
from support.turns import Duels, FirstMoveDecides

STEPS = 16
PROGRESS = Progress(total_timesteps=1000)
SMALL = {"hidden_sizes": (8,), "encoder": "flat"}
ROLLOUT = SMALL | {"num_steps": STEPS, "batch_size": 8, "update_epochs": 2}
REPLAY = SMALL | {"train_freq": STEPS, "batch_size": 8, "learning_starts": 0, "buffer_size": 200}


def config(algo: str, **settings: Any) -> TrainConfig:
    return TrainConfig(algo=algo, env_id="Duels", seed=1, num_envs=4).with_overrides(**settings)


CASES = {
    "ppo": config("ppo", **ROLLOUT),
    "ppo, normalised": config("ppo", **ROLLOUT, normalize_obs=True, normalize_reward=True),
    "ppo, larger batches than rollouts": config("ppo", **ROLLOUT | {"batch_size": 64}),
    "ppo, stops early": config("ppo", **ROLLOUT, target_kl=1e-3),
    "ppo, in shards": config("ppo", **ROLLOUT, learner_shards=3),
    "a2c": config("a2c", **SMALL, num_steps=STEPS),
    "recurrent_ppo": config("recurrent_ppo", **ROLLOUT, sequence_length=4, core_size=5),
    "recurrent_ppo, in shards": config(
        "recurrent_ppo", **ROLLOUT, sequence_length=4, core_size=5, learner_shards=2
    ),
    "dqn": config("dqn", **REPLAY),
    "dqn, three steps": config("dqn", **REPLAY, n_step=3, prioritized=True),
    "dqn, normalised": config("dqn", **REPLAY, normalize_obs=True, normalize_reward=True),
}


class Twice:
    """Records every step in a source, and in a block."""

    def __init__(self, source: Any, duels: Duels, columns: Any) -> None:
        layout = block_columns(duels.spec, columns, STEPS, len(duels.rows))
        self.parts = source, BlockRecorder({name: np.zeros(*each) for name, each in layout.items()})

    def record_action(self, obs: Any, acted: ActArrays) -> None:
        for part in self.parts:
            part.record_action(obs, acted)

    def record_outcome(self, step: Any, acted: ActArrays) -> None:
        for part in self.parts:
            part.record_outcome(step, acted)

    def end_collect(self, acted: ActArrays) -> None:
        for part in self.parts:
            part.end_collect(acted)

    def record_block(self, block: Any) -> None:
        raise AssertionError


def content(source: Any) -> dict[str, Any]:
    """Return everything that a source holds, as bytes."""

    def plain(state: Any) -> Any:
        if isinstance(state, torch.Tensor):
            return state.numpy().tobytes()
        return {name: plain(part) for name, part in state.items()} if isinstance(state, dict) else state

    buffer = source.buffer
    if isinstance(buffer, ReplayBuffer):
        return {"state": plain(source.state_dict()), "rows": plain(buffer.read_rows(0, buffer.total_rows))}
    rollout = {name: array.tobytes() for name, array in buffer._write.items()}
    return {"state": plain(source.state_dict()), "rollout": rollout, "last": plain(source._last_value)}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("masked", [False, True])
def test_steps_and_blocks_train_alike(name: str, masked: bool) -> None:
    duels = Duels(deaths=True, masked=masked)
    by_steps, by_blocks = (build_parts(CASES[name], duels.spec) for _ in range(2))
    recorder = Twice(by_steps.source, duels, by_steps.actor.explorer.columns)
    sampler = LocalSampler(duels, by_steps.actor.explorer, recorder)
    learned = False
    for iteration in range(4):
        sampler.collect(STEPS, PROGRESS)
        block = recorder.parts[1].take()
        assert not block.valid.all()
        assert (block.ended & ~block.valid).any()
        by_blocks.source.record_block(block)
        assert content(by_blocks.source) == content(by_steps.source)
        for parts in (by_steps, by_blocks):
            for batch in parts.source.batches(PROGRESS):
                result = parts.learner.update(batch, PROGRESS)
                parts.source.feedback(batch, result)
                learned = True
                finite = {key: bool(torch.isfinite(value)) for key, value in result.metrics.items()}
                assert all(finite.values()), f"{iteration}: {finite}"
        for one, other in zip(
            by_steps.actor.policy.parameters(), by_blocks.actor.policy.parameters(), strict=True
        ):
            assert torch.equal(one, other)
    assert learned


def test_rows_that_wait_after_a_rollout_have_no_last_value() -> None:
    for name in ("ppo", "recurrent_ppo"):
        duels = Duels()
        parts = build_parts(CASES[name], duels.spec)
        sampler = LocalSampler(duels, parts.actor.explorer, parts.source)
        sampler.collect(STEPS, PROGRESS)
        assert duels.out.acts is not None
        assert np.isnan(sampler.acted.last_value).tolist() == (~duels.out.acts).tolist()
        assert 0 < duels.out.acts.sum() < len(duels.rows)
        duels.out.acts = None  # everybody acts
        parts.actor.explorer.end_collect(duels.out, sampler.acted)
        assert np.isfinite(sampler.acted.last_value).all()


def test_batches_have_the_rows_that_are_learned_from() -> None:
    duels = Duels()
    parts = build_parts(CASES["ppo"], duels.spec)
    LocalSampler(duels, parts.actor.explorer, parts.source).collect(STEPS, PROGRESS)
    valid, ended = parts.source.buffer.valid.clone(), parts.source.buffer.dones.clone()
    (batch,) = parts.source.batches(PROGRESS)
    assert batch.valid is None
    # one row of each duel acts; of those that go on, the last mover's action is not learned from
    unknown = 0
    for row in range(4):
        last = int(valid[:, row].nonzero()[-1])
        waits = bool(duels.out.acts is not None and not duels.out.acts[row])
        unknown += waits and not bool(ended[last:, row].any())
    assert unknown > 0
    assert len(batch) == 2 * STEPS - unknown


def test_sources_are_built_for_turns_if_the_environments_say_so() -> None:
    spec = Duels().spec
    for name, turns in ((name, turns) for name in CASES for turns in (False, True)):
        source: RolloutSource | ReplaySource = build_parts(CASES[name], replace(spec, turns=turns)).source
        assert source.buffer.turns == turns
        if isinstance(source.buffer, ReplayBuffer):
            assert isinstance(source.buffer.window, TurnWindow) == turns


def test_stacks_of_frames_are_stored_whole() -> None:
    images = replace(Duels().spec, observation_space=spaces.Box(0, 255, (2, 8, 8), np.uint8))
    settings = config("dqn", **REPLAY | {"encoder": "flat"}, preprocessing="image", frame_stack=2)
    for turns in (False, True):
        buffer = build_parts(settings, replace(images, turns=turns)).source.buffer
        assert (buffer.frames is None) == turns


@pytest.mark.parametrize("algo", ["ppo", "a2c", "recurrent_ppo"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_single_row_can_be_learned_from(algo: str, count: int) -> None:
    parts = build_parts(CASES[algo], Duels().spec)
    buffer = parts.source.buffer
    buffer.valid.fill_(False)
    buffer.valid[:count, 0] = True
    buffer.rewards[count - 1 :, 0] = 1.0
    buffer.row = STEPS
    (batch,) = parts.source.batches(PROGRESS)
    assert (len(batch) if batch.valid is None else int(batch.valid.sum())) == count
    before = torch.cat([part.detach().flatten() for part in parts.actor.policy.parameters()])
    result = parts.learner.update(batch, PROGRESS)
    losses = {name: value for name, value in result.metrics.items() if name.endswith(("loss", "norm"))}
    assert all(torch.isfinite(value) for value in losses.values())
    after = torch.cat([part.detach().flatten() for part in parts.actor.policy.parameters()])
    assert torch.isfinite(after).all()
    assert not torch.equal(before, after)


def test_an_encoder_that_cannot_learn_from_one_row_is_refused() -> None:
    settings = config("ppo", **ROLLOUT | {"encoder": "tiny_encoders:Batched"}, features_dim=6)
    build_parts(settings, replace(Duels().spec, turns=False))
    with pytest.raises(UserError, match=r"Batched cannot learn from a single row.*take turns or die"):
        build_parts(settings, Duels().spec)


def test_a_memory_begins_with_the_first_own_action_and_remembers_what_it_sees_while_it_waits() -> None:
    duels = Duels(1, deaths=True)
    duels.length[:] = 4
    parts = build_parts(CASES["recurrent_ppo"], duels.spec)
    explorer, sampler = parts.actor.explorer, LocalSampler(duels, parts.actor.explorer, parts.source)
    starts, remembered = [], []
    for _ in range(4):
        sampler.collect(1, PROGRESS)
        parts.source.buffer.reset()
        starts.append(sampler.acted.extra["episode_starts"].tolist())
        remembered.append([bool(explorer.memory.parts[0][row].any()) for row in range(3)])
    # white begins; black waits for its first move; the third row dies in step 1
    assert starts == [[True, True, True], [False, True, False], [False, False, True], [False, False, True]]
    # nothing is remembered after the end of the duel
    assert remembered == [[True, False, True], [True, True, False], [True, True, False], [False] * 3]


@pytest.mark.parametrize(
    "settings",
    [
        config("ppo", **ROLLOUT | {"learning_rate": 0.02, "gamma": 0.9}),
        config("a2c", **SMALL, num_steps=STEPS, learning_rate=0.02, gamma=0.9),
        config("recurrent_ppo", **ROLLOUT | {"learning_rate": 0.02}, sequence_length=4, core_size=5),
        config("dqn", **REPLAY | {"learning_rate": 0.02, "gradient_steps": 16}, exploration_fraction=0.5),
    ],
    ids=lambda settings: settings.algo,
)
def test_the_one_who_waits_learns_from_the_end_of_the_game(settings: TrainConfig) -> None:
    duels = FirstMoveDecides(4)
    settings = replace(settings, num_envs=len(duels.rows))
    parts = build_parts(settings, duels.spec)
    sampler = LocalSampler(duels, parts.actor.explorer, parts.source)
    progress = Progress(total_timesteps=2000)
    while not progress.done:
        collected = sampler.collect(parts.source.steps_per_collect, progress)
        progress = progress.advanced(timesteps=collected.timesteps)
        for batch in parts.source.batches(progress):
            result = parts.learner.update(batch, progress)
            progress = progress.advanced(updates=result.updates)
    duels.reset()
    policy = parts.actor.policy
    rng = np.random.default_rng(0)
    actions, _ = policy.act(duels.out.obs, policy.initial_state(len(duels.rows)), deterministic=True, rng=rng)
    assert set((actions[duels.rows.agents == 0] % 2).tolist()) == {1}
