"""Self-play against snapshots: who plays, what is learned from and counted, and exact resumes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl_training
from rl_training.core.errors import UserError
from rl_training.core.packing import PackedModule
from rl_training.core.state import join_state, split_state
from rl_training.core.types import Progress
from rl_training.data.rollout_buffer import RolloutBatch
from rl_training.envs.stepper_factory import training_stepper
from rl_training.experiment.building import UserObjects, build_actor, build_parts
from rl_training.experiment.checkpoints.format import read_checkpoint
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.policies.recurrent import RecurrentPolicy
from rl_training.policies.self_play import SelfPlayExplorer
from rl_training.policies.snapshot_pool import GameResult
from rl_training.runtime.sampler import LocalSampler
from support.callbacks import StopAtCollect
from support.compared_runs import assert_same_run
from support.duel import Race, Throws, masked_race, race_alone, race_of_three

GAMES = {"race": Race, "masked": masked_race, "three": race_of_three, "throws": Throws}


class Log:
    """A recorder that copies what each step brought."""

    def __init__(self, sampler: LocalSampler) -> None:
        self.sampler, self.inner = sampler, sampler.recorder
        self.steps: list[dict[str, Any]] = []
        sampler.recorder = self  # type: ignore[assignment]  # for its three methods

    def record_action(self, obs: Any, acted: Any) -> None:
        play = self.sampler.explorer
        shown = {name: getattr(play, name).copy() for name in ("seats", "opponents", "is_opponent")}
        seen = obs if not isinstance(obs, dict) else obs[""]
        self.steps.append(shown | {"obs": seen.copy(), "action": acted.action.copy(), "acts": self._acts()})
        self.inner.record_action(obs, acted)

    def _acts(self) -> Any:
        return self.sampler.stepper.out.acts.copy()

    def record_outcome(self, step: Any, acted: Any) -> None:
        names = ("valid", "reward", "ended", "played")
        self.steps[-1] |= {name: getattr(step, name).copy() for name in names}
        self.inner.record_outcome(step, acted)

    def end_collect(self, acted: Any) -> None:
        self.steps[-1]["last_value"] = acted.last_value.copy()
        self.inner.end_collect(acted)


class Playing:
    """The parts of a run of a small game, without its folder."""

    def __init__(self, tiny: Any, game: str = "race", algo: str = "ppo", **settings: Any) -> None:
        settings = {"opponents": "pool", "opponent_update_every": 50, "num_envs": 4} | settings
        self.config = tiny(algo, env_id=f"{game}-v0", **settings)
        given = UserObjects(factory=GAMES[game])
        if game == "masked":
            self.config = self.config.with_overrides(use_action_masks="on")
        stepper = training_stepper(self.config, GAMES[game])
        self.parts = build_parts(self.config, stepper.spec, given)
        found = self.parts.actor.explorer
        assert isinstance(found, SelfPlayExplorer)
        self.play = found
        self.sampler = LocalSampler(stepper, found, self.parts.source)
        self.log = Log(self.sampler)
        self.sampler.start()
        self.progress = Progress(total_timesteps=10_000)

    def collect(self, num_steps: int = 16) -> Any:
        """Collect; a rollout that was not learned from is dropped."""
        if getattr(self.parts.source.buffer, "full", False):
            self.parts.source.buffer.reset()
        collected = self.sampler.collect(num_steps, self.progress)
        self.progress = self.progress.advanced(timesteps=collected.timesteps)
        return collected

    def update(self) -> list[Any]:
        batches = list(self.parts.source.batches(self.progress))
        for batch in batches:
            self.parts.source.feedback(batch, self.parts.learner.update(batch, self.progress))
        return batches

    @property
    def steps(self) -> list[dict[str, Any]]:
        return self.log.steps


@pytest.fixture
def playing(tiny: Any) -> Any:
    return lambda *arguments, **settings: Playing(tiny, *arguments, **settings)


class TestRowsOfOpponents:
    @pytest.mark.parametrize("game", GAMES)
    def test_exactly_one_seat_of_a_game_is_valid(self, playing, game):
        run = playing(game)
        total = sum(run.collect().timesteps for _ in range(8))
        for step in run.steps:
            seat_of_row = np.repeat(np.arange(len(step["is_opponent"]) // 4), 4)
            learners = seat_of_row == np.tile(step["seats"], len(seat_of_row) // 4)
            assert (step["is_opponent"] == ~learners).all()
            assert (step["played"] == step["acts"]).all()
            assert (step["valid"] == (step["acts"] & learners)).all()
        assert total == sum(int(step["valid"].sum()) for step in run.steps)
        assert 0 < total < sum(int(step["acts"].sum()) for step in run.steps)
        assert run.progress.timesteps == total

    def test_simultaneous_games_count_one_of_two_rows(self, playing):
        assert playing("throws").collect(16).timesteps == 16 * 4

    @pytest.mark.parametrize("game", GAMES)
    def test_seats_are_shuffled(self, playing, game):
        run = playing(game, num_envs=16)
        for _ in range(40):
            run.collect()
        seats = np.array([step["seats"] for step in run.steps])
        over = np.array([step["ended"].reshape(-1, 16).any(axis=0) for step in run.steps])
        counts = np.bincount(seats[over])
        assert len(counts) == len(run.play.is_opponent) // 16
        expected = counts.sum() / len(counts)
        assert counts == pytest.approx(expected, abs=5 * np.sqrt(expected))

    def test_an_episode_counts_the_moves_of_all(self, playing):
        run = playing("race", num_envs=1)
        lengths = [one.length for _ in range(10) for one in run.collect().episodes]
        ends = [number for number, step in enumerate(run.steps) if step["ended"].all()]
        assert len(ends) > 5
        assert lengths == np.diff([-1, *ends]).tolist()  # one of the two moves in every step

    def test_a_rollout_has_the_learners_rows_only(self, playing):
        run = playing("race")
        for _ in range(5):
            start = len(run.steps)
            run.collect()
            (batch,) = run.update()
            assert isinstance(batch, RolloutBatch)
            steps = run.steps[start:]
            mine = [(t, row) for t, step in enumerate(steps) for row in np.flatnonzero(step["valid"])]
            rows = [(steps[t]["obs"][row].tolist(), steps[t]["action"][row].item()) for t, row in mine]
            found = list(zip(batch.obs.tolist(), batch.actions.tolist(), strict=True))
            known = [  # an own action whose outcome the rollout does not show is left out
                any(step["ended"][row] or step["valid"][row] for step in steps[t + 1 :])
                or steps[t]["ended"][row]
                or not np.isnan(steps[-1]["last_value"][row])
                for t, row in mine
            ]
            assert found == [each for each, kept in zip(rows, known, strict=True) if kept]
            assert len(found) >= 20

    def test_opponents_are_not_bootstrapped(self, playing):
        run = playing("throws")
        for _ in range(5):
            run.collect(1)
            assert (np.isnan(run.steps[-1]["last_value"]) == run.play.is_opponent).all()

    def test_replay_has_the_learners_rows_only(self, playing):
        run = playing("race", algo="dqn", learning_starts=10_000, buffer_size=1000, total_timesteps=20_000)
        total = sum(run.collect(1).timesteps for _ in range(60))
        buffer = run.parts.source.buffer
        assert run.parts.source.recorded == total
        stored = buffer.rows[: buffer.kept_rows]
        mine = {
            (tuple(step["obs"][row].tolist()), step["action"][row].item())
            for step in run.steps
            for row in np.flatnonzero(step["valid"])
        }
        assert total - 8 <= len(stored) <= total  # some are open still
        assert {
            (tuple(row["obs"].reshape(-1).tolist()), int(row["actions"].item())) for row in stored
        } <= mine


class TestSnapshots:
    def snapshot_bytes(self, run: Playing) -> dict[int, bytes]:
        return {number: each.weights.tobytes() for number, each in run.play.pool.snapshots.items()}

    def test_one_of_the_initial_policy_and_one_per_interval(self, playing):
        run = playing("race", opponent_update_every=60, opponent_pool_size=3)
        live = PackedModule(run.parts.actor.policy)
        taken, before = {}, -1
        for _ in range(30):
            if run.progress.timesteps // 60 > before:
                before = run.progress.timesteps // 60
                taken[run.progress.timesteps] = live.pack().tobytes()
            run.collect()
            run.update()
        assert len(taken) > 8
        times = list(taken)
        snapshots = [run.play.pool.snapshots[number] for number in run.play.pool.members]
        assert [each.timesteps for each in snapshots] == [0, *times[-2:]]
        for each in snapshots:
            assert each.weights.tobytes() == taken[each.timesteps]
        assert len(set(taken.values())) == len(taken)

    def test_latest_is_a_pool_of_the_newest(self, playing):
        run = playing("race", opponents="latest")
        for _ in range(20):
            run.collect()
        assert len(run.play.pool.members) == 1
        assert run.play.pool.snapshots[run.play.pool.members[0]].timesteps > run.progress.timesteps - 100

    @pytest.mark.parametrize("game", ["throws", "race"])
    def test_opponents_are_the_snapshot_and_not_the_live_policy(self, playing, game):
        run = playing(game, opponent_update_every=10**6, num_envs=24)
        run.collect()
        act = run.play.act
        state = run.sampler.state_dict()["explorer"]
        before = json.loads(json.dumps({"rng": state["self_play"]["rng"], "own": state["rng"]}))
        obs, acted = run.sampler.stepper.out.obs.copy(), run.sampler.acted

        def chosen() -> np.ndarray:
            run.play.rng.bit_generator.state = before["rng"]
            run.play.explorer.rng.bit_generator.state = before["own"]
            act(obs, acted, run.progress)
            return acted.action.copy()

        first = chosen()
        with torch.no_grad():
            for parameter in run.parts.actor.policy.parameters():
                parameter.copy_(torch.randn_like(parameter) * 5)
        second, mine = chosen(), ~run.play.is_opponent
        theirs = run.play.is_opponent & run.sampler.stepper.out.acts
        assert theirs.sum() > 5
        assert (first[theirs] == second[theirs]).all()
        assert (first[mine] != second[mine]).any()
        # and they follow the snapshot
        for policy, _ in run.play._policies._playing.values():
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.copy_(torch.randn_like(parameter) * 5)
        assert (chosen()[theirs] != first[theirs]).any()

    def test_opponents_sample_their_actions(self, playing):
        run = playing("throws", num_envs=24)
        run.collect(1)
        (first,) = run.steps
        assert len(np.unique(first["obs"], axis=0)) == 1
        assert set(first["action"][first["is_opponent"]].tolist()) == {0, 1, 2}

    def test_a_game_keeps_its_opponent(self, playing):
        run = playing("race", opponent_update_every=20, opponent_pool_size=2)
        for _ in range(30):
            run.collect()
        for before, after in zip(run.steps, run.steps[1:], strict=False):
            goes_on = ~before["ended"].reshape(2, 4).any(axis=0)
            for name in ("opponents", "seats"):
                assert (before[name] == after[name])[goes_on].all()
        drawn = {int(number) for step in run.steps for number in step["opponents"]}
        assert len(drawn) > 5
        assert len(run.play._policies._playing) + len(run.play._policies._idle) <= 4  # places are used again

    def test_each_snapshot_has_its_own_weights_when_it_plays(self, playing):
        run = playing("race", opponent_update_every=30, opponent_pool_size=4)
        for _ in range(25):
            run.collect()
            run.update()
            for number, (policy, _) in run.play._policies._playing.items():
                weights = run.play.pool.snapshots[number].weights
                assert PackedModule(policy).pack().tobytes() == weights.tobytes()
            assert set(run.play._policies._playing) == set(run.play.opponents.tolist())

    @pytest.mark.parametrize("game", GAMES)
    def test_results_are_those_of_the_games(self, playing, game, monkeypatch):
        run = playing(game)
        told, record = [], run.play.pool.record
        monkeypatch.setattr(
            run.play.pool,
            "record",
            lambda number, result: (told.append((number, result)), record(number, result)),
        )
        episodes = [one for _ in range(12) for one in run.collect().episodes]
        assert len(told) == len(episodes) > 20
        returns = np.zeros_like(run.steps[0]["reward"])
        ended, expected = np.zeros(len(returns), bool), []
        for step in run.steps:
            returns += step["reward"]
            ended |= step["ended"]
            for env in np.flatnonzero(ended.reshape(-1, 4).all(axis=0)):
                by_seat = returns.reshape(-1, 4)[:, env].tolist()
                own = by_seat.pop(step["seats"][env])
                expected.append((step["opponents"][env], GameResult.of(own, np.array(by_seat))))
                returns.reshape(-1, 4)[:, env] = 0
                ended.reshape(-1, 4)[:, env] = False
        assert told == expected
        assert {result.result for _, result in told} >= {0.0, 1.0}

    def test_memory_begins_with_the_first_own_action(self, playing):
        run = playing("race", algo="recurrent_ppo", num_envs=2, opponent_update_every=10**6)
        policy = build_actor(run.config, run.sampler.stepper.spec, UserObjects(factory=Race)).policy
        assert isinstance(policy, RecurrentPolicy)
        memory = [policy.initial_state(1) for _ in range(4)]
        begun = np.zeros(4, bool)
        for _ in range(60):
            run.collect(1)
            step = run.steps[-1]
            for row in range(4):
                begun[row] |= step["acts"][row]
                if begun[row]:
                    memory[row] = policy.step(step["obs"][row : row + 1], memory[row])[2]
                if step["ended"][row]:
                    memory[row], begun[row] = policy.initial_state(1), False
                if run.play.is_opponent[row] and step["is_opponent"][row]:
                    for part, expected in zip(run.play._memory.parts, memory[row], strict=True):
                        assert part[row] == pytest.approx(expected[0], abs=1e-6)
        assert any(step["ended"].all() for step in run.steps)

    def test_memory_is_saved(self, playing):
        run, other = (playing("race", algo="recurrent_ppo", num_envs=3) for _ in range(2))
        for steps in (16, 3):
            run.collect(steps)
        tensors, plain = split_state(run.sampler.state_dict())
        other.sampler.load_state_dict(join_state(tensors, json.loads(json.dumps(plain))))
        other.parts.actor.policy.load_state_dict(run.parts.actor.policy.state_dict())
        other.progress = run.progress
        assert any(part[run.play.is_opponent].any() for part in run.play._memory.parts)
        for _ in range(4):
            for ours, theirs in zip(run.play._memory.parts, other.play._memory.parts, strict=True):
                assert (ours == theirs).all()
            assert (run.play._memory.starts == other.play._memory.starts).all()
            run.collect(1)
            other.collect(1)
            assert (run.steps[-1]["action"] == other.steps[-1]["action"]).all()


RUNS: dict[str, dict[str, Any]] = {
    "pool": {"game": "race"},
    "latest": {"game": "race", "opponents": "latest"},
    "prioritised": {"game": "race", "opponent_sampling": "prioritised"},
    "recent": {"game": "masked", "opponent_sampling": "recent"},
    "three": {"game": "three"},
    "simultaneous": {"game": "throws"},
    "memory": {"game": "race", "algo": "recurrent_ppo"},
    "normalised": {"game": "race", "normalize_obs": True, "normalize_reward": True},
    "dqn": {"game": "masked", "algo": "dqn", "n_step": 2},
    "noisy dqn": {"game": "throws", "algo": "dqn", "noisy": True},
    "a2c": {"game": "three", "algo": "a2c"},
    "mappo": {"game": "three", "algo": "mappo", "critic_obs": ()},
}


def config_of(tiny: Any, name: str, **changes: Any) -> tuple[Any, Any]:
    settings = dict(RUNS[name])
    game, algo = settings.pop("game"), settings.pop("algo", "ppo")
    settings = {"opponents": "pool", "opponent_update_every": 37} | settings
    if settings["opponents"] == "pool":
        settings["opponent_pool_size"] = 3
    settings |= {"env_id": f"{game}-v0", "num_envs": 3, "total_timesteps": 300} | changes
    return tiny(algo, **settings), GAMES[game]


class TestRuns:
    @pytest.mark.parametrize("name", RUNS)
    @pytest.mark.parametrize("pause", [20, 170])
    def test_resumes_to_the_same_bytes(self, tiny, rows, name, pause):
        config, factory = config_of(tiny, name)
        ours = train(config, factory=factory).run_dir
        stopped = train(config, factory=factory, callbacks=[StopAtCollect(pause)])
        assert stopped.paused
        saved = read_checkpoint(stopped.checkpoint_path).state["sampler"]
        assert any(saved["episodes"]["lengths"])  # within a game
        assert saved["explorer"]["self_play"]["opponents"] != [-1] * 3
        theirs = resume(stopped.run_dir, factory=factory).run_dir
        assert_same_run(ours, theirs, rows)

    def test_metrics_and_picture(self, tiny, rows):
        config, factory = config_of(tiny, "pool", total_timesteps=400)
        run_dir = train(config, factory=factory).run_dir
        last = rows(run_dir / "metrics.jsonl")[-1]
        assert last["selfplay/pool_size"] == 3
        assert 0 <= last["rollout/win_rate"] <= 1
        assert last["selfplay/pool_elo_min"] <= last["selfplay/pool_elo_max"]
        assert 0 <= last["selfplay/win_rate_oldest"] <= 1
        assert last["selfplay/elo"] != 1000
        assert (run_dir / "elo.png").read_bytes().startswith(b"\x89PNG")

    def test_without_opponents_there_is_neither(self, tiny, rows):
        config, factory = config_of(tiny, "pool", total_timesteps=64)
        plain = config.with_overrides(opponents="self", opponent_update_every=20_000, opponent_pool_size=10)
        run_dir = train(plain, factory=factory).run_dir
        assert not any(
            name.startswith("selfplay/") for row in rows(run_dir / "metrics.jsonl") for name in row
        )
        assert not (run_dir / "elo.png").exists()

    def test_an_agent_is_loaded_without_opponents(self, tiny):
        config, factory = config_of(tiny, "recent")
        model = rl_training.load(train(config, factory=factory).run_dir)
        seen = {"runner_0": np.array([0, 0, 0, 0], np.float32)}
        actions, _ = model.predict(seen, action_masks={"runner_0": np.array([False, True, False])})
        assert actions == {"runner_0": 1}

    def test_a_run_continues_an_agent_that_had_no_opponents(self, tiny):
        config, factory = config_of(tiny, "pool")
        plain = config.with_overrides(
            opponents="self", opponent_update_every=20_000, opponent_pool_size=10, total_timesteps=60
        )
        before = train(plain, factory=factory)
        model = rl_training.PPO.load(before.run_dir, env=factory, opponents="pool", opponent_update_every=37)
        model.learn(total_timesteps=200)
        found = read_checkpoint(Path(model.run_dir) / "checkpoints" / last_name(Path(model.run_dir)))
        weights = found.state["sampler"]["explorer"]["self_play"]["pool"]["weights"]
        assert len(weights) >= 3

    def test_another_number_of_games_begins_new_ones_with_the_same_pool(self, playing):
        run = playing("race")
        for _ in range(10):
            run.collect()
        saved = run.sampler.state_dict()["explorer"]
        other = playing("race", num_envs=6)
        other.play.load_state_dict(saved)
        other.progress = run.progress
        other.collect()
        assert other.play.pool.members[: len(run.play.pool.members)] == run.play.pool.members
        assert (other.steps[0]["opponents"] >= 0).all()


def last_name(run_dir: Path) -> str:
    return (run_dir / "checkpoints" / "last").read_text(encoding="utf-8").strip()


class TestRefusals:
    @pytest.mark.parametrize(
        ("game", "changes", "words"),
        [
            (
                "race",
                {"policies": "each"},
                ["opponents is pool", "2 policies", "runner_0", "policies to shared"],
            ),
            ("alone", {}, ["opponents is pool", "single agent", "runner_0", "opponents to self"]),
        ],
    )
    def test_by_one_error(self, tiny, game, changes, words):
        factory = race_alone if game == "alone" else Race
        config = tiny("ppo", env_id=f"{game}-v0", opponents="pool", **changes)
        with pytest.raises(UserError) as refusal:
            train(config, factory=factory)
        assert all(word in str(refusal.value) for word in words), refusal.value
        assert not list(Path(config.output_dir).glob("*"))

    def test_several_snapshots_need_an_environment_with_several_agents(self, tiny):
        with pytest.raises(UserError, match="has a single agent"):
            train(tiny("ppo", opponents="pool"))
