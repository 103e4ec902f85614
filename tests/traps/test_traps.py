"""One test per known mistake of the field; docs/correctness.md lists them all."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training.algorithms import PPO
from rl_training.algorithms.actor_critic_objective import normalized
from rl_training.algorithms.ppo import PPOConfig, PPOLearner, ppo_loss
from rl_training.config import TrainConfig
from rl_training.config.schedules import ScheduledSetting
from rl_training.core.errors import UserError
from rl_training.core.rows import Rows
from rl_training.core.types import ActArrays, EpisodeStats, Progress, UpdateResult
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.sources import RolloutSource
from rl_training.envs.factory import make_vector_env
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment import start
from rl_training.experiment.building import build_parts
from rl_training.experiment.checkpoints.format import read_checkpoint
from rl_training.experiment.loading import load_agent
from rl_training.experiment.logs.rows import read_rows
from rl_training.experiment.resume import resume
from rl_training.policies.explorers import ActorCriticExplorer
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.episodes import RunningEpisodes
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.sampler import LocalSampler
from support.corridor import Corridor


def corridor_stepper(mode: AutoresetMode, lengths: tuple[int, ...] = (3, 5)) -> VectorStepper:
    env = SyncVectorEnv([lambda n=n: Corridor(n) for n in lengths], autoreset_mode=mode)
    stepper = VectorStepper(env)
    stepper.reset()
    return stepper


def actions(n: int = 2) -> Any:
    return np.zeros(n, np.int64)


def config(folder: Path, **overrides: Any) -> TrainConfig:
    small = TrainConfig(
        algo="ppo",
        env_id="CartPole-v1",
        seed=5,
        output_dir=str(folder),
        total_timesteps=1024,
        num_envs=4,
        eval_every_timesteps=0,
        checkpoint_every_timesteps=0,
        num_eval_episodes=2,
        algorithm=PPOConfig(num_steps=32, batch_size=64, update_epochs=2),
    )
    return small.with_overrides(**overrides)


@pytest.mark.parametrize("truncated", [True, False])
def test_ppo_bootstraps_a_truncation_with_its_final_observation_only(truncated: bool) -> None:
    """Two steps, the first ends an episode: its target must not know the second, which is another episode's."""
    targets = []
    for value_of_next_episode in (0.0, 1000.0):
        buffer = RolloutBuffer(num_steps=2, num_envs=1, obs_shape=(1,), action_shape=())
        buffer.rewards[:, 0] = torch.tensor([1.0, 1.0])
        buffer.dones[0, 0] = True
        buffer.values[:, 0] = torch.tensor([0.5, value_of_next_episode])
        buffer.final_values[0, 0] = 7.0 if truncated else 0.0
        buffer.compute_returns_and_advantages(last_value=torch.tensor([3.0]), gamma=0.9, gae_lambda=0.8)
        targets.append(float(buffer.returns[0, 0]))
    assert targets == pytest.approx([1.0 + 0.9 * 7.0 if truncated else 1.0] * 2)


def test_explorer_values_the_true_final_observation_of_a_truncation() -> None:
    """What the collector records for a cut episode is V of the observation before the reset, computed by hand."""
    stepper = corridor_stepper(AutoresetMode.SAME_STEP, lengths=(3, 3))
    parts = build_parts(config(Path(), num_envs=2), stepper.spec)
    assert isinstance(parts.learner, PPOLearner)
    assert isinstance(parts.source, RolloutSource)
    LocalSampler(stepper, parts.actor.explorer, parts.source).collect(3, Progress(total_timesteps=9))
    final = np.array([[0, 3], [0, 3]], np.float32)
    expected = parts.learner.policy.network(torch.from_numpy(final))[1]
    torch.testing.assert_close(parts.source.buffer.final_values[2], expected.detach(), rtol=1e-5, atol=1e-6)
    assert (parts.source.buffer.final_values[:2] == 0).all()


def test_next_step_autoreset_row_is_never_stored_or_counted() -> None:
    stepper = corridor_stepper(AutoresetMode.NEXT_STEP)
    counted, stored = 0, 0
    running, episodes = RunningEpisodes(Rows.one_per_env(2)), list[EpisodeStats]()
    buffer = RolloutBuffer(num_steps=12, num_envs=2, obs_shape=(2,), action_shape=())
    acted = ActArrays(actions(), *(np.zeros(2, np.float32) for _ in range(4)))
    for _ in range(12):
        buffer.record_action(stepper.out.obs, acted)
        stepper.step(actions())
        buffer.record_outcome(stepper.out, acted)
        episodes += running.record(stepper.out)
        counted += stepper.out.num_valid
    stored = int(buffer.valid.sum())
    dead = {0: [3, 7, 11], 1: [5, 11]}  # the step after each end
    assert [np.flatnonzero(~buffer.valid[:, i].numpy()).tolist() for i in (0, 1)] == [dead[0], dead[1]]
    assert counted == stored == 24 - 5
    assert (buffer.rewards[~buffer.valid] == 0).all()


def test_dead_rows_do_not_touch_the_loss() -> None:
    """The masked loss of a batch with dead rows equals the loss of the batch without them."""
    generator = torch.Generator().manual_seed(0)
    names = ("logprobs", "old_logprobs", "returns", "values", "new_values", "entropy", "advantages")
    rows = {name: torch.randn(12, generator=generator) for name in names}
    valid = torch.arange(12) % 3 != 0
    masked = rows | {"valid": valid, "advantages": normalized(rows["advantages"], valid)}
    kept = {name: tensor[valid] for name, tensor in rows.items()}
    kept["advantages"] = normalized(kept["advantages"], None)
    settings = {"clip_coef": 0.2, "ent_coef": 0.01, "vf_coef": 0.5, "clip_vloss": True}
    expected = ppo_loss(kept, **settings)
    for name, value in ppo_loss(masked, **settings).items():
        torch.testing.assert_close(value, expected[name])


def test_same_step_autoreset_gives_the_true_final_observation() -> None:
    stepper = corridor_stepper(AutoresetMode.SAME_STEP)
    for _ in range(3):
        stepper.step(actions())
    out = stepper.out
    assert out.truncated.tolist() == [True, False]
    assert isinstance(out.final_obs, np.ndarray)
    assert isinstance(out.obs, np.ndarray)
    assert out.final_obs[0].tolist() == [0, 3], "the last observation of the old episode"
    assert out.obs[0].tolist() == [1, 0], "the first observation of the new one"
    assert out.valid.all()


@pytest.mark.parametrize("declared", [None, "sometimes", AutoresetMode.DISABLED])
def test_undeclared_autoreset_mode_is_refused(declared: Any) -> None:
    env = SyncVectorEnv([Corridor])
    env.metadata = dict(env.metadata) | {"autoreset_mode": declared}
    with pytest.raises(UserError, match="autoreset"):
        VectorStepper(env)


def test_episode_statistics_agree_in_both_autoreset_modes() -> None:
    found = []
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        stepper, running, episodes = (
            corridor_stepper(mode),
            RunningEpisodes(Rows.one_per_env(2)),
            list[EpisodeStats](),
        )
        for _ in range(40):
            stepper.step(actions())
            episodes += running.record(stepper.out)
        found.append({(e.total_reward, e.length) for e in episodes})
    assert found[0] == found[1] == {(6.0, 3), (15.0, 5)}


def test_both_flags_set_means_terminated() -> None:
    class Both(Corridor):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            obs, reward, *_ = super().step(action)
            return obs, reward, True, True, {}

    stepper = VectorStepper(SyncVectorEnv([Both], autoreset_mode=AutoresetMode.SAME_STEP))
    stepper.reset()
    stepper.step(actions(1))
    assert stepper.out.terminated[0]
    assert not stepper.out.truncated[0]


def test_reported_returns_are_raw_under_reward_normalisation(tmp_path: Path) -> None:
    plain = start.train(config(tmp_path))
    scaled = start.train(config(tmp_path, normalize_reward=True, learning_rate=1e-9))
    for result in (plain, scaled):
        row = read_rows(result.run_dir / "metrics.jsonl")[-1]
        assert row["rollout/ep_rew_mean"] == row["rollout/ep_len_mean"] > 5, "CartPole pays 1 per step"


def test_recorded_rewards_stay_raw_under_reward_normalisation(tmp_path: Path) -> None:
    settings = config(tmp_path, normalize_reward=True)
    stepper = VectorStepper(make_vector_env(settings))
    stepper.reset()
    parts = build_parts(settings, stepper.spec)
    assert isinstance(parts.source, RolloutSource)
    LocalSampler(stepper, parts.actor.explorer, parts.source).collect(32, Progress(total_timesteps=9))
    (batch,) = parts.source.batches(Progress(total_timesteps=9))
    assert (parts.source.buffer.rewards == 1).all()
    assert batch.returns.std() > 0


def test_advantage_normalisation_skips_a_single_row() -> None:
    assert normalized(torch.tensor([3.0]), None).tolist() == [3.0]
    only = torch.tensor([False, True, False])
    assert normalized(torch.tensor([9.0, 3.0, 9.0]), only)[1] == 3.0


def test_value_clipping_takes_the_larger_error_per_element() -> None:
    rows = dict.fromkeys(("logprobs", "old_logprobs", "advantages", "entropy"), torch.zeros(2))
    values, new_values = torch.zeros(2), torch.tensor([1.0, 1.0])
    returns = torch.tensor([1.0, -1.0])  # row 0: clipping makes it worse; row 1: clipping makes it better
    batch = rows | {"values": values, "new_values": new_values, "returns": returns}
    loss = ppo_loss(batch, clip_coef=0.2, ent_coef=0.0, vf_coef=1.0, clip_vloss=True)["value_loss"]
    assert float(loss) == pytest.approx((0.8**2 + 2.0**2) / 2)


def test_value_loss_has_no_factor_of_one_half() -> None:
    rows = dict.fromkeys(("logprobs", "old_logprobs", "advantages", "entropy", "values"), torch.zeros(2))
    batch = rows | {"new_values": torch.tensor([0.0, 0.0]), "returns": torch.tensor([1.0, 3.0])}
    losses = ppo_loss(batch, clip_coef=0.2, ent_coef=0.0, vf_coef=0.5)
    assert float(losses["value_loss"]) == 5.0
    assert float(losses["loss"]) == 2.5


@pytest.mark.parametrize("target_kl", [1e-12, 1e6])
def test_target_kl_withholds_the_step_that_would_exceed_it(target_kl: float, tmp_path: Path) -> None:
    settings = config(tmp_path, target_kl=target_kl)
    stepper = VectorStepper(make_vector_env(settings))
    stepper.reset()
    parts = build_parts(settings, stepper.spec)
    assert isinstance(parts.learner, PPOLearner)
    LocalSampler(stepper, parts.actor.explorer, parts.source).collect(32, Progress(total_timesteps=9))
    (batch,) = parts.source.batches(Progress(total_timesteps=9))
    batch = replace(
        batch, logprobs=batch.logprobs - torch.linspace(0, 0.3, len(batch))
    )  # the policy has moved
    before = parts.learner.optimizer.flat.clone()
    parts.learner.update(batch, Progress(total_timesteps=9))
    assert torch.equal(before, parts.learner.optimizer.flat) == (target_kl < 1)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_schedules_never_go_below_zero_when_a_rollout_overshoots(schedule: Any) -> None:
    overshot = Progress(timesteps=1100, total_timesteps=1000)
    assert overshot.fraction == 1.0
    rate = ScheduledSetting("learning_rate", 1e-3, schedule).at(1.1)
    assert rate == pytest.approx(0.0, abs=1e-12)
    assert rate >= 0


def test_gaussian_actions_are_stored_unclipped_and_clipped_for_the_env() -> None:
    seen = []

    class Narrow(Corridor):
        action_space = gymnasium.spaces.Box(-0.1, 0.1, (1,), np.float32)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            seen.append(float(action[0]))
            return super().step(action)

    stepper = VectorStepper(SyncVectorEnv([Narrow], autoreset_mode=AutoresetMode.SAME_STEP))
    stepper.reset()
    parts = build_parts(config(Path(), num_envs=1, num_steps=64, batch_size=32), stepper.spec)
    assert isinstance(parts.source, RolloutSource)
    assert isinstance(parts.learner, PPOLearner)
    LocalSampler(stepper, parts.actor.explorer, parts.source).collect(64, Progress(total_timesteps=9))
    buffer = parts.source.buffer
    assert max(map(abs, seen)) <= 0.1 + 1e-6
    assert buffer.actions.abs().max() > 1.0, "beyond the bounds, as sampled"
    rows = buffer.flat()
    policy = parts.learner.policy
    logprobs, *_ = policy.evaluate_actions(replace(rows, obs=policy.prepare(rows.obs)))
    torch.testing.assert_close(logprobs.detach(), buffer.flat().logprobs, rtol=1e-4, atol=1e-5)


def test_cadence_is_in_timesteps_whatever_num_envs_is(tmp_path: Path) -> None:
    """With rollouts of equal size, evaluations and checkpoints fall on the same steps for 2 and for 8 environments."""
    found = []
    for num_envs in (2, 8):
        settings = config(
            tmp_path,
            num_envs=num_envs,
            num_steps=128 // num_envs,
            eval_every_timesteps=300,
            checkpoint_every_timesteps=500,
            keep_checkpoints=99,
        )
        run_dir = start.train(settings).run_dir
        evaluated = [row["timesteps"] for row in read_rows(run_dir / "evaluations.jsonl")]
        found.append(evaluated)
        saved = {int(p.name.removeprefix("step_")) for p in (run_dir / "checkpoints").glob("step_*")}
        assert {512, 1024} <= saved
    assert found[0] == found[1] == [384, 640, 1024]


def test_normalisation_statistics_are_saved_with_each_checkpoint_and_frozen_in_evaluation(
    tmp_path: Path,
) -> None:
    settings = config(tmp_path, normalize_obs=True, checkpoint_every_timesteps=512, keep_checkpoints=9)
    run_dir = start.train(settings).run_dir
    early, late = (read_checkpoint(run_dir / "checkpoints" / f"step_{n}").state["model"] for n in (512, 1024))
    assert early["normalizer.moments.count"] == 512
    assert late["normalizer.moments.count"] == 1024
    assert not torch.equal(early["normalizer.moments.mean"], late["normalizer.moments.mean"])
    agent = load_agent(run_dir)
    assert isinstance(agent.policy, torch.nn.Module)
    before = {name: tensor.clone() for name, tensor in agent.policy.state_dict().items()}
    agent.evaluate(3)
    assert all(torch.equal(before[name], tensor) for name, tensor in agent.policy.state_dict().items())


def test_one_statistic_is_shared_by_all_environments(tmp_path: Path) -> None:
    """Mean and variance after one rollout are those of all rows of all environments together."""
    settings = config(tmp_path, normalize_obs=True)
    stepper = VectorStepper(make_vector_env(settings))
    stepper.reset()
    parts = build_parts(settings, stepper.spec)
    assert isinstance(parts.learner, PPOLearner)
    LocalSampler(stepper, parts.actor.explorer, parts.source).collect(32, Progress(total_timesteps=9))
    (batch,) = parts.source.batches(Progress(total_timesteps=9))
    parts.learner.update(batch, Progress(total_timesteps=9))
    assert parts.learner.policy.normalizer is not None
    assert isinstance(batch.obs, torch.Tensor)
    moments = parts.learner.policy.normalizer.moments
    torch.testing.assert_close(moments.mean, batch.obs.double().mean(0))
    torch.testing.assert_close(moments.var, batch.obs.double().var(0, correction=0))


def test_acting_and_learning_on_a_rollout_see_the_same_statistics(tmp_path: Path) -> None:
    """The first minibatch of every update has ratio 1: recorded and recomputed log-probabilities agree."""
    settings = config(tmp_path, normalize_obs=True, normalize_reward=True, update_epochs=1, batch_size=128)

    class RatioIsOne(Callback):
        def on_update(self, progress: Progress, result: UpdateResult) -> None:
            assert float(result.metrics["approx_kl"]) < 1e-6
            assert float(result.metrics["clip_fraction"]) == 0

    start.train(settings, callbacks=[RatioIsOne()])


def test_resume_restores_random_states_and_never_reseeds(tmp_path: Path) -> None:
    run_dir = start.train(config(tmp_path)).run_dir
    saved = read_checkpoint(run_dir / "checkpoints" / "step_1024").state["sampler"]
    fresh = build_parts(config(tmp_path), VectorStepper(make_vector_env(config(tmp_path))).spec).actor
    assert saved["explorer"] != fresh.explorer.state_dict()
    started: list[Any] = []

    class FirstCollect(Callback):
        def on_collect(self, progress: Progress) -> None:
            started.append(progress.timesteps)

    result = resume(run_dir, total_timesteps=1152, callbacks=[FirstCollect()])
    after = read_checkpoint(result.checkpoint_path).state["sampler"]
    assert started == [1152]
    assert after["explorer"] != saved["explorer"]
    parts = build_parts(config(tmp_path), VectorStepper(make_vector_env(config(tmp_path))).spec)
    replayed = parts.actor.explorer
    assert isinstance(replayed, ActorCriticExplorer)
    replayed.load_state_dict(saved["explorer"])
    replayed.rng.random((32, 4))  # what one rollout of 32 steps with 4 environments draws
    assert replayed.state_dict() == after["explorer"]


def test_schedules_continue_on_resume(tmp_path: Path) -> None:
    settings = config(tmp_path, learning_rate=1e-3, learning_rate_schedule="linear", log_every_timesteps=1)
    run_dir = start.train(settings).run_dir
    resume(run_dir, total_timesteps=2048)
    rates = {
        r["time/total_timesteps"]: r["train/learning_rate"] for r in read_rows(run_dir / "metrics.jsonl")
    }
    assert rates[1152] == pytest.approx(1e-3 * (1 - 1152 / 2048))
    assert rates[2048] == pytest.approx(0.0, abs=1e-12)


def test_checkpoints_are_written_at_update_boundaries_only(tmp_path: Path) -> None:
    settings = config(tmp_path, checkpoint_every_timesteps=100, keep_checkpoints=99)
    run_dir = start.train(settings).run_dir
    for folder in (run_dir / "checkpoints").glob("step_*"):
        checkpoint = read_checkpoint(folder)
        assert checkpoint.progress.timesteps % 128 == 0
        assert checkpoint.progress.updates == checkpoint.progress.timesteps // 128


def test_every_counter_that_changes_behaviour_is_saved(tmp_path: Path) -> None:
    run_dir = start.train(config(tmp_path, stop_after_stale_evals=50, eval_every_timesteps=300)).run_dir
    manifest = json.loads((run_dir / "checkpoints" / "step_1024" / "manifest.json").read_text())
    assert manifest["progress"] == {"timesteps": 1024, "updates": 8}
    trainer = manifest["state"]["trainer"]
    assert (trainer["log_fired"], trainer["evaluate_fired"]) == (0, 3)
    name, plateau = trainer["callbacks"][0]
    assert name == "StopOnPlateau"
    assert set(plateau) == {"best", "stale"}
    assert plateau["best"] == trainer["best_reward"]
    assert trainer["best_reward"] is not None
    assert read_checkpoint(run_dir / "checkpoints" / "step_1024").state["optimizer"]["step"] == 8 * 2 * 2


def test_every_environment_has_its_own_stream_and_seeded_action_space(tmp_path: Path) -> None:
    first, again = (make_vector_env(config(tmp_path)) for _ in range(2))
    obs, _ = first.reset()
    same, _ = again.reset()
    assert len(np.unique(obs, axis=0)) == 4
    np.testing.assert_array_equal(obs, same)
    samples = [[env.action_space.sample() for _ in range(20)] for env in first.envs]  # type: ignore[attr-defined]
    repeated = [[env.action_space.sample() for _ in range(20)] for env in again.envs]  # type: ignore[attr-defined]
    assert samples == repeated
    assert samples[0] != samples[1]


def test_vectorised_evaluation_gives_every_environment_the_same_quota() -> None:
    """One environment's episodes are ten times shorter: it must still contribute exactly half of the episodes."""

    class Still:
        def initial_state(self, rows: int) -> Any:
            return ()

        def act(self, obs: Any, state: Any, *, deterministic: bool, rng: Any) -> Any:
            return actions(), state

    stepper = corridor_stepper(AutoresetMode.SAME_STEP, lengths=(2, 20))
    evaluation = Evaluator(stepper, Still()).evaluate(6, deterministic=True, rng=np.random.default_rng(0))
    assert sorted(evaluation.lengths) == [2, 2, 2, 20, 20, 20]


def test_one_thread_is_the_default_and_the_callers_setting_is_restored(tmp_path: Path) -> None:
    seen = []

    class Look(Callback):
        def on_collect(self, progress: Progress) -> None:
            seen.append(torch.get_num_threads())

    torch.set_num_threads(2)
    try:
        start.train(config(tmp_path, total_timesteps=128), callbacks=[Look()])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert seen == [1]


def test_small_networks_go_to_the_cpu_by_default(tmp_path: Path) -> None:
    agent = PPO(config(tmp_path)).agent
    assert isinstance(agent.policy, torch.nn.Module)
    assert {p.device.type for p in agent.policy.parameters()} == {"cpu"}


def test_a_checkpoint_holds_only_safetensors_and_json(tmp_path: Path) -> None:
    run_dir = start.train(config(tmp_path, normalize_obs=True)).run_dir
    files = [
        p for p in (run_dir / "checkpoints").rglob("*") if p.is_file() and p.name not in ("last", "best")
    ]
    assert {p.suffix for p in files} == {".safetensors", ".json"}
    for path in files:
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        else:  # a length and a JSON header, which neither a pickle nor a zip has
            blob = path.read_bytes()
            json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
            assert not zipfile.is_zipfile(path)
