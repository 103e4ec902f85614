"""The sampler owns its environments and its explorer, and an engine makes it."""

from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from records import DrawingEnv

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.messages import decode
from rl_training.core.types import Progress
from rl_training.envs.factory import make_vector_env
from rl_training.envs.stepper import NOT_RESUMABLE, VectorStepper
from rl_training.experiment.building import build_parts
from rl_training.runtime.engines import ray_host
from rl_training.runtime.engines.local import LocalEngine
from rl_training.runtime.sampler import saved_envs

CONFIG = TrainConfig(algo="recurrent_ppo", env_id="Drawing", seed=3, num_envs=2).with_overrides(
    num_steps=8, sequence_length=4, batch_size=16, hidden_sizes=(4,), core_size=4
)


def make_engine() -> LocalEngine:
    return LocalEngine(lambda: VectorStepper(make_vector_env(CONFIG, factory=DrawingEnv)))


def equipped() -> tuple[Any, Any]:
    engine = make_engine()
    parts = build_parts(CONFIG, engine.spec)
    return engine.make_sampler(parts.actor, parts.source), parts.source


def collected(sampler: Any, source: Any) -> dict[str, torch.Tensor]:
    sampler.collect(8, Progress())
    columns = {"obs": source.buffer.obs, "actions": source.buffer.actions, "values": source.buffer.values}
    found = {name: column.clone() for name, column in (columns | source.buffer.extra).items()}
    source.buffer.reset()
    return found


def test_a_sampler_continues_alone_from_its_own_state() -> None:
    """Environments, memory, random stream and episodes: nothing of them is saved elsewhere."""
    one, source = equipped()
    one.start()
    collected(one, source)
    state = one.state_dict()
    assert max(state["episodes"]["lengths"]) > 0
    other, other_source = equipped()
    assert other.load_state_dict(state) == []
    expected, found = collected(one, source), collected(other, other_source)
    assert len(expected) > 4, "the memory must be compared too"
    for name, column in expected.items():
        assert torch.equal(found[name], column), name
    assert other.running.state_dict() == one.running.state_dict()


def test_environments_that_cannot_be_restored_lose_their_memory_as_well() -> None:
    one, source = equipped()
    one.start()
    collected(one, source)
    state = one.state_dict()
    assert any(part.any() for part in state["explorer"]["memory"]["parts"].values())
    envs = {name: part for name, part in state["envs"].items() if name != "episodes"}
    other, _ = equipped()
    assert other.load_state_dict(state | {"envs": envs}) == [0, 1]
    assert not any(part.any() for part in other.explorer.memory.parts)
    assert other.running.state_dict()["lengths"] == [0, 0]


def test_an_engine_replaces_its_environments_and_keeps_their_description() -> None:
    built: list[Any] = []

    def build() -> VectorStepper:
        builders = [partial(DrawingEnv) for _ in range(2)]
        built.append(SyncVectorEnv(builders, autoreset_mode=AutoresetMode.SAME_STEP))
        return VectorStepper(built[-1])

    engine = LocalEngine(build)
    assert engine.spec.num_envs == 2
    assert NOT_RESUMABLE not in engine.notices
    engine.restart()
    assert len(built) == 2
    assert built[0].closed
    assert not built[1].closed
    engine.close()
    assert built[1].closed


def test_the_environments_of_a_checkpoint_are_found_in_its_sampler() -> None:
    sampler, _ = equipped()
    sampler.start()
    state = {"sampler": sampler.state_dict()}
    assert [envs["lengths"] for envs in saved_envs(state)] == [[0, 0]]
    assert saved_envs({"model": {}}) == []
    np.testing.assert_array_equal(sampler.rows.envs, [0, 1])


def test_infos_that_cannot_be_sent_from_a_node_are_an_error_of_the_user():
    """Not of the cluster: the crew would name it as the cause."""
    answer, block = ray_host._answer(lambda: ({"infos": lambda: None}, None))
    error = decode(answer)
    assert isinstance(error, UserError)
    assert "infos of the environments that cannot be sent" in str(error)
    assert block is None
