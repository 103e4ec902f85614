"""A rollout that is recorded by blocks equals one that is recorded by steps, to the byte."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from records import CountingEnv

from rl_training.config import TrainConfig
from rl_training.core.blocks import Block, joined_blocks
from rl_training.core.columns import Column
from rl_training.core.types import ActArrays, Progress, StepArrays
from rl_training.data.block_recorder import BlockRecorder, block_columns
from rl_training.envs.info_keys import CUT
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment.building import build_parts
from rl_training.runtime.sampler import LocalSampler

SAME, NEXT = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP
STEPS = 12


class Losing(CountingEnv):
    """Loses a life with every third step of an episode that goes on."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        goes_on = not (terminated or truncated)
        return obs, reward, terminated, truncated, {CUT: goes_on and self.count % 3 == 0}


class Nested(gymnasium.ObservationWrapper[Any, Any, Any]):
    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.Dict({"a": env.observation_space, "b": spaces.Discrete(99)})

    def observation(self, observation: Any) -> Any:
        return {"a": observation, "b": int(observation[1])}


class Frames(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Two frames [2, 3, 3] of the step and the one before it."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(0, 255, (2, 3, 3), np.uint8)

    def observation(self, observation: Any) -> Any:
        newest = np.full((3, 3), 10 * observation[0] + observation[1], np.uint8)
        return np.stack([newest - 1 if observation[1] else newest, newest])


def plain(length: int, **settings: Any) -> Any:
    return Losing(lengths=(length,), **settings)


def recorder_for(stepper: VectorStepper, extra: Any = ()) -> BlockRecorder:
    layout = block_columns(stepper.spec, extra, STEPS, len(stepper.rows))
    return BlockRecorder({name: np.zeros(*each) for name, each in layout.items()})


class Twice:
    """Records every step in a source, and in a block."""

    def __init__(self, source: Any, stepper: VectorStepper, extra: Any = ()) -> None:
        self.source, self.block = source, recorder_for(stepper, extra)

    def record_action(self, obs: Any, acted: ActArrays) -> None:
        self.source.record_action(obs, acted)
        self.block.record_action(obs, acted)

    def record_outcome(self, step: StepArrays, acted: ActArrays) -> None:
        self.source.record_outcome(step, acted)
        self.block.record_outcome(step, acted)

    def end_collect(self, acted: ActArrays) -> None:
        self.source.end_collect(acted)
        self.block.end_collect(acted)

    def record_block(self, block: Block) -> None:
        raise AssertionError


def stepper_of(mode: AutoresetMode, wrap: Any, lengths: tuple[int, ...] = (2, 5, 7)) -> VectorStepper:
    def build(length: int) -> Any:
        env = plain(length, terminates=length != 5, truncates=length == 5)
        return env if wrap is None else wrap(env)

    stepper = VectorStepper(
        SyncVectorEnv([partial(build, each) for each in lengths], autoreset_mode=mode), clip_reward=True
    )
    stepper.reset()
    return stepper


def config(algo: str, **settings: Any) -> TrainConfig:
    small = {"hidden_sizes": (4,), "encoder": "flat"} | settings
    return TrainConfig(algo=algo, env_id="Counting", seed=1, num_envs=3).with_overrides(**small)


def content(source: Any) -> dict[str, Any]:
    """Everything that a source holds, as bytes."""
    buffer = source.buffer
    found: dict[str, Any] = {"state": _plain(source.state_dict())}
    if hasattr(buffer, "rows"):
        found |= {"rows": buffer.rows[: buffer.total_rows].tobytes(), "recorded": source.recorded}
        if buffer.frames is not None:
            stored = buffer.frames.read_rows(0, buffer.frames.total_rows)
            found["frames"] = {name: part.numpy().tobytes() for name, part in stored.items()}
        return found
    found |= {name: column.tobytes() for name, column in buffer._write.items()}
    return found | {"row": buffer.row, "last_value": source._last_value.numpy().tobytes()}


def _plain(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.numpy().tobytes()
    if isinstance(state, dict):
        return {name: _plain(part) for name, part in state.items()}
    return state


ROLLOUTS = {
    "ppo": config("ppo", num_steps=STEPS, batch_size=12),
    "ppo normalised": config("ppo", num_steps=STEPS, batch_size=12, normalize_reward=True),
    "recurrent_ppo": config("recurrent_ppo", num_steps=STEPS, batch_size=12, sequence_length=4, core_size=3),
}
REPLAY = {"train_freq": 36, "batch_size": 8, "learning_starts": 0, "buffer_size": 100}
REPLAYS = {
    "one step": config("dqn", **REPLAY),
    "three steps": config("dqn", **REPLAY, n_step=3),
    "by priority": config("dqn", **REPLAY, prioritized=True, n_step=2),
    "normalised": config("dqn", **REPLAY, normalize_obs=True, normalize_reward=True),
}


@pytest.mark.parametrize("mode", [SAME, NEXT])
@pytest.mark.parametrize("wrap", [None, Nested])
@pytest.mark.parametrize("settings", [*ROLLOUTS.values(), *REPLAYS.values()], ids=[*ROLLOUTS, *REPLAYS])
def test_blocks_and_steps_are_the_same(mode: AutoresetMode, wrap: Any, settings: TrainConfig) -> None:
    stepper = stepper_of(mode, wrap)
    by_steps, by_blocks = (build_parts(settings, stepper.spec) for _ in range(2))
    recorder = Twice(by_steps.source, stepper, by_steps.actor.explorer.columns)
    sampler = LocalSampler(stepper, by_steps.actor.explorer, recorder)
    for _ in range(2):
        sampler.collect(STEPS, Progress(total_timesteps=100))
        block = recorder.block.take()
        assert block.ended.any()
        assert block.cut.any()
        assert block.valid.all() == (mode is SAME)
        by_blocks.source.record_block(block)
        assert content(by_blocks.source) == content(by_steps.source)
        for source in (by_steps.source, by_blocks.source):
            if settings.algo != "dqn":
                list(source.batches(Progress(total_timesteps=100)))


def test_frames_of_stacked_images_are_the_same() -> None:
    stepper = stepper_of(SAME, Frames)
    settings = config("dqn", **REPLAY, encoder="small", preprocessing="image", frame_stack=2)
    by_steps, by_blocks = (build_parts(settings, stepper.spec) for _ in range(2))
    assert by_steps.source.buffer.frames is not None
    recorder = Twice(by_steps.source, stepper, by_steps.actor.explorer.columns)
    LocalSampler(stepper, by_steps.actor.explorer, recorder).collect(STEPS, Progress(total_timesteps=100))
    by_blocks.source.record_block(recorder.block.take())
    assert content(by_blocks.source) == content(by_steps.source)


@pytest.mark.parametrize("wrap", [None, Nested])
def test_the_blocks_of_groups_are_joined_to_one_of_all_rows(wrap: Any) -> None:
    """The actions do not matter to these environments, so groups see what all of them see together."""

    def block_of(*lengths: int) -> Block:
        stepper = stepper_of(SAME, wrap, lengths)
        recorder = recorder_for(stepper, [Column("length", (), np.int64)])
        acted = ActArrays(
            action=np.zeros(len(lengths), np.int64),
            logprob=np.array(lengths, np.float32),
            value=np.array(lengths, np.float32),
            final_value=np.array(lengths, np.float32),
            last_value=np.array(lengths, np.float32),
            extra={"length": np.array(lengths)},
        )
        for _ in range(STEPS):
            recorder.record_action(stepper.out.obs, acted)
            stepper.step(acted.action)
            recorder.record_outcome(stepper.out, acted)
        recorder.end_collect(acted)
        return recorder.take()

    whole, parts = block_of(2, 5, 7, 3), joined_blocks([block_of(2, 5), block_of(7), block_of(3)])
    for name, column in vars(whole).items():
        found = getattr(parts, name)
        pairs = (
            zip(column.values(), found.values(), strict=True)
            if isinstance(column, dict)
            else [(column, found)]
        )
        for expected, other in pairs:
            assert expected.dtype == other.dtype
            np.testing.assert_array_equal(other, expected, err_msg=name)


def test_a_block_that_does_not_fit_is_refused() -> None:
    settings, stepper = ROLLOUTS["ppo"], stepper_of(SAME, None)
    parts = build_parts(settings, stepper.spec)
    recorder = Twice(parts.source, stepper)
    LocalSampler(stepper, parts.actor.explorer, recorder).collect(STEPS, Progress(total_timesteps=100))
    with pytest.raises(IndexError, match="a block of 12 steps does not fit into the 0 rows that are left"):
        parts.source.record_block(recorder.block.take())


def test_a_block_recorder_takes_blocks_too() -> None:
    settings, stepper = ROLLOUTS["recurrent_ppo"], stepper_of(SAME, Nested)
    parts = build_parts(settings, stepper.spec)
    columns = parts.actor.explorer.columns
    first, second = Twice(parts.source, stepper, columns), recorder_for(stepper, columns)
    LocalSampler(stepper, parts.actor.explorer, first).collect(STEPS, Progress(total_timesteps=100))
    block = first.block.take()
    second.record_block(block)
    again = second.take()
    for name, column in vars(block).items():
        found = getattr(again, name)
        if isinstance(column, dict):
            assert {key: part.tobytes() for key, part in found.items()} == {
                key: part.tobytes() for key, part in column.items()
            }
        else:
            assert found.tobytes() == column.tobytes(), name
