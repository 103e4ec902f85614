"""One test per known mistake of off-policy learning; docs/correctness.md lists them all."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from rl_training.algorithms.dqn import DQNConfig, DQNLearner
from rl_training.algorithms.sac import SACLearner
from rl_training.algorithms.target_networks import TargetNetwork
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.core.types import ActArrays, EnvSpec, Progress
from rl_training.data.replay_buffer import ReplayBuffer, Transitions
from rl_training.data.sources import ReplaySource
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment import start
from rl_training.experiment.building import build_parts
from rl_training.experiment.checkpoints.format import read_checkpoint
from rl_training.models.heads import squashed_gaussian_sample
from support.corridor import Corridor

GAMMA = 0.9


def record(
    mode: AutoresetMode, *, truncates: bool = True, n_step: int = 1, steps: int = 40, capacity: int = 1000
) -> tuple[ReplayBuffer, int]:
    """Return a buffer filled from two corridors of 3 and 5 steps, and the number of valid transitions."""
    env = SyncVectorEnv([lambda n=n: Corridor(n, truncates) for n in (3, 5)], autoreset_mode=mode)
    stepper = VectorStepper(env)
    stepper.reset()
    buffer = ReplayBuffer.for_spaces(
        stepper.spec.observation_space,
        stepper.spec.action_space,
        capacity=capacity,
        num_envs=2,
        n_step=n_step,
        gamma=GAMMA,
    )
    counted = 0
    for _ in range(steps):
        buffer.record_action(stepper.out.obs, np.zeros(2, np.int64))
        stepper.step(np.zeros(2, np.int64))
        buffer.record_outcome(stepper.out)
        counted += stepper.out.num_valid
    return buffer, counted


MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]


@pytest.mark.parametrize("mode", MODES)
def test_replay_bootstraps_a_time_limit_from_the_true_final_observation(mode: AutoresetMode) -> None:
    buffer, counted = record(mode, truncates=True)
    rows = buffer.rows[: len(buffer)]
    assert len(buffer) == counted
    assert np.all(rows["discounts"] == np.float32(GAMMA)), "a time limit is no end of the task"
    np.testing.assert_array_equal(rows["next_obs"][:, 0], rows["obs"][:, 0])  # the same episode
    np.testing.assert_array_equal(rows["next_obs"][:, 1], rows["obs"][:, 1] + 1)


@pytest.mark.parametrize("mode", MODES)
def test_replay_masks_the_bootstrap_with_terminated_only(mode: AutoresetMode) -> None:
    buffer, _ = record(mode, truncates=False)
    rows = buffer.rows[: len(buffer)]
    last = np.isin(rows["next_obs"][:, 1], (3, 5)) & (rows["discounts"] == 0)
    assert last.sum() > 5
    assert np.all(rows["discounts"][~last] == np.float32(GAMMA))


def test_next_step_autoreset_row_is_never_replayed() -> None:
    buffer, counted = record(AutoresetMode.NEXT_STEP)
    assert len(buffer) == counted < 80
    assert buffer.rows[: len(buffer)]["rewards"].min() >= 1.0, "a dead row has reward 0"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("capacity", [7, 1000])
def test_n_step_windows_never_cross_an_episode_end_nor_the_edge_of_the_ring(
    mode: AutoresetMode, capacity: int
) -> None:
    buffer, _ = record(mode, n_step=3, capacity=capacity)
    rows = buffer.rows[: len(buffer)]
    taken = (rows["next_obs"][:, 1] - rows["obs"][:, 1]).astype(int)
    assert set(taken) == {1, 2, 3}
    np.testing.assert_array_equal(rows["next_obs"][:, 0], rows["obs"][:, 0])
    np.testing.assert_allclose(rows["discounts"], GAMMA**taken, rtol=1e-6)
    for row, k in zip(rows, taken, strict=True):
        expected = sum(GAMMA**i * (row["obs"][1] + 1 + i) for i in range(k))
        assert row["rewards"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("padding", ["repeat", "zeros"])
def test_frames_are_stored_once_and_stacks_never_mix_episodes(padding: str) -> None:
    rng = np.random.default_rng(0)
    buffer = ReplayBuffer(
        capacity=200, num_envs=1, obs_shape=(4, 2, 2), obs_dtype=np.uint8, action_shape=(), frame_stack=4
    )
    seen, frames, steps = [], 0, 0
    for _ in range(12):
        first = rng.integers(1, 256, (2, 2)).astype(np.uint8)
        stack = np.stack([first if padding == "repeat" else np.zeros_like(first)] * 3 + [first])
        frames += 1 + (padding == "zeros")
        for step in range(9):
            successor = np.concatenate([stack[1:], rng.integers(1, 256, (1, 2, 2)).astype(np.uint8)])
            ended = np.array([step == 8])
            buffer.record_action(stack[None], np.zeros(1))
            buffer.record_outcome(_outcome(successor[None], ended))
            seen.append((stack, successor))
            stack, frames, steps = successor, frames + 1, steps + 1
    assert buffer.frames is not None
    assert buffer.frames.total_rows == frames
    assert len(buffer) == steps
    for index, (stack, successor) in enumerate(seen):
        np.testing.assert_array_equal(buffer.frames.stacks(buffer.rows["obs"][index]), stack)
        np.testing.assert_array_equal(buffer.frames.stacks(buffer.rows["next_obs"][index]), successor)


def _outcome(obs: Any, ended: Any) -> Any:
    from rl_training.core.types import StepArrays

    no = np.zeros(1, bool)
    return StepArrays(obs, obs, np.zeros(1), no, ended, ended, ~no, no, bool(ended.any()), num_valid=1)


def config(algo: str, folder: Path | str = "runs", **overrides: Any) -> TrainConfig:
    small = {"buffer_size": 500, "learning_starts": 20, "batch_size": 16, "hidden_sizes": (16, 16)}
    env_id = "CartPole-v1" if algo == "dqn" else "Pendulum-v1"
    base = TrainConfig(
        algo=algo,
        env_id=env_id,
        seed=5,
        output_dir=str(folder),
        total_timesteps=200,
        num_envs=2,
        num_eval_episodes=1,
        eval_every_timesteps=0,
    )
    return base.with_overrides(**small | overrides)


def parts_for(algo: str, **overrides: Any) -> Any:
    settings = config(algo, **overrides)
    env = gymnasium.make(settings.env_id)
    return build_parts(settings, EnvSpec(env.observation_space, env.action_space, settings.num_envs))


def transitions(size: int, obs: int, *, actions: Any) -> Transitions:
    generator = torch.Generator().manual_seed(0)
    return Transitions(
        obs=torch.randn(size, obs, generator=generator),
        actions=actions,
        rewards=torch.randn(size, generator=generator),
        discounts=torch.full((size,), GAMMA),
        next_obs=torch.randn(size, obs, generator=generator),
        indices=torch.arange(size),
    )


def test_squashed_gaussian_log_probability_is_right_and_stays_finite() -> None:
    params = torch.tensor([[0.3, -0.7, 0.1, -0.2], [15.0, -15.0, 0.0, 0.0]], dtype=torch.float64)
    noise = torch.tensor([[0.5, -1.0], [5.0, -5.0]], dtype=torch.float64)
    actions, logprobs = squashed_gaussian_sample(params, noise)
    normal = torch.distributions.Normal(params[:1, :2], params[:1, 2:].exp())
    squashed = torch.distributions.TransformedDistribution(normal, [torch.distributions.TanhTransform()])
    torch.testing.assert_close(logprobs[:1], squashed.log_prob(actions[:1]).sum(-1))
    assert actions[1].abs().max() == 1.0, "the second row is where a formula on the action itself would fail"
    assert torch.isfinite(logprobs).all()


def test_entropy_target_is_minus_the_action_size_and_log_alpha_is_optimised() -> None:
    learner = parts_for("sac").learner
    assert isinstance(learner, SACLearner)
    assert learner.temperature.target_entropy == -1.0
    assert learner.temperature.optimizer.parameters[0] is learner.temperature.log_alpha
    batch = transitions(16, 3, actions=torch.zeros(16, 1))
    before = float(learner.temperature.log_alpha.detach())
    learner.update(batch, Progress(100, 0, 200))
    # a fresh policy is more random than the target asks for, so the weight of entropy falls by one step of Adam
    assert float(learner.temperature.log_alpha.detach()) == pytest.approx(
        before - learner.config.learning_rate, rel=1e-3
    )


def test_critics_are_not_differentiated_in_the_actors_step() -> None:
    learner = parts_for("sac").learner
    run, gradient = learner.critics_run, learner.critic_optimizer.gradient.fill_(7.0)
    values = run.forward(np.ones((4, 3), np.float32), np.ones((4, 1), np.float32))
    assert run.action_gradient(np.ones_like(values)).any()
    assert (gradient == 7.0).all()


def test_target_update_counts_the_updates_of_the_run() -> None:
    learner = parts_for("dqn", target_update_every_timesteps=None, target_update_every_updates=3).learner
    assert isinstance(learner, DQNLearner)
    batch = transitions(16, 4, actions=torch.zeros(16, dtype=torch.long))
    equal = []
    for updates in range(2, 9):  # in the middle of a run, one update per call
        learner.update(batch, Progress(100, updates, 1000))
        equal.append(torch.equal(learner.target.flat, learner.optimizer.flat))
    assert equal == [True, False, False, True, False, False, True]


def test_the_unit_of_the_target_update_is_in_its_name() -> None:
    names = {name for name in DQNConfig.__dataclass_fields__ if name.startswith("target_update")}
    assert names == {"target_update_every_timesteps", "target_update_every_updates"}
    with pytest.raises(
        ConfigError, match="target_update_every_timesteps and target_update_every_updates are both"
    ):
        config("dqn", target_update_every_updates=5, target_update_every_timesteps=10)
    learner = parts_for("dqn", target_update_every_timesteps=10).learner
    batch = transitions(16, 4, actions=torch.zeros(16, dtype=torch.long))
    counts = []
    for timesteps in (8, 12, 16, 20, 44):
        learner.update(batch, Progress(timesteps, 0, 1000))
        counts.append(learner.target_updates.value)
    assert counts == [0, 1, 1, 2, 4]


def test_every_environment_has_its_own_exploration_coin() -> None:
    parts = parts_for(
        "dqn", num_envs=8, learning_starts=0, exploration_initial_eps=0.5, exploration_final_eps=0.5
    )
    acted = ActArrays(*[np.zeros(8, np.int64)] + [np.zeros(8)] * 4)
    obs = np.zeros((8, 4), np.float32)
    greedy = parts.learner.policy.act(obs, (), deterministic=True, rng=None)[0]
    differing = []
    for _ in range(400):
        parts.actor.explorer.act(obs, acted, Progress(50, 0, 100))
        differing.append(acted.action != greedy)
    together = np.array(differing)
    assert together.mean() == pytest.approx(
        0.25, abs=0.03
    )  # half explore, and half of those hit the greedy action
    some = (together.any(axis=1) & ~together.all(axis=1)).mean()
    assert some > 0.8, "one coin for all would make all explore or none"


@pytest.mark.parametrize("num_envs", [1, 2, 3, 8])
def test_update_to_data_ratio_does_not_depend_on_num_envs(num_envs: int, tmp_path: Path) -> None:
    settings = {"num_envs": num_envs, "train_freq": 4, "gradient_steps": 2, "total_timesteps": 240}
    result = start.train(config("dqn", tmp_path, learning_starts=40, **settings))
    assert result.metrics["global_step"] == 240
    assert result.metrics["updates"] == (240 - 40) // 4 * 2


def test_running_statistics_are_copied_to_targets() -> None:
    torch.manual_seed(0)
    online = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    flat = torch.cat([p.detach().reshape(-1) for p in online.parameters()])
    target = TargetNetwork(online, flat)
    online(torch.randn(32, 2) + 5)
    target.follow(0.5)
    copied = target.network[1]
    assert isinstance(copied, nn.BatchNorm1d)
    torch.testing.assert_close(copied.running_mean, online[1].running_mean)
    assert float(copied.running_mean.abs().max()) > 0.1


@pytest.mark.parametrize("algo", ["dqn", "sac", "td3"])
def test_every_counter_of_replay_that_changes_behaviour_is_saved(algo: str, tmp_path: Path) -> None:
    extra = {"n_step": 3} | ({"prioritized": True} if algo == "dqn" else {})
    result = start.train(config(algo, tmp_path, **extra))
    source = read_checkpoint(result.checkpoint_path).state["source"]
    assert source["recorded"] == 200
    assert source["batches_given"] == result.metrics["updates"]
    waiting = source["buffer"]["window"]["time"].clamp(max=2)  # at most two steps wait for a third reward
    assert waiting.shape == (2,)
    assert source["buffer"]["total_rows"] + int(waiting.sum()) == 200
    assert ("priorities" in source["buffer"]["sampler"]) == (algo == "dqn")
    assert "state" in source["rng"]


def test_replay_source_owes_nothing_for_its_warm_up() -> None:
    source = parts_for("dqn", learning_starts=100, train_freq=4, gradient_steps=1).source
    assert isinstance(source, ReplaySource)
    source.buffer.add(np.zeros(50, source.buffer.dtype))
    source.recorded = 100
    assert source.owed == 0
    source.recorded = 108
    assert source.owed == 2, "only what came after the warm-up counts"
