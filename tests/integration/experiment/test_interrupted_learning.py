"""However learning ends, what was learned is there: in the model, in callbacks, and in the run's folder."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import tiny_envs
import torch

import rl_training
from rl_training.algorithms import PPO
from rl_training.algorithms.ppo import PPOConfig
from rl_training.config import TrainConfig, load_config
from rl_training.core.errors import EnvironmentFault, Interrupted, UserError
from rl_training.experiment.checkpoints.format import read_checkpoint
from rl_training.experiment.resume import resume
from rl_training.experiment.start import make_run_dir, train
from rl_training.runtime.callbacks import Callback, StopTraining, TrainingContext


def weights(model: PPO) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in model.agent.state["model"].items() if tensor.ndim}


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def only_run(config: Any) -> Path:
    (run_dir,) = Path(config.output_dir).iterdir()
    return run_dir


def last_of(run_dir: Path) -> Path:
    return run_dir / "checkpoints" / (run_dir / "checkpoints" / "last").read_text(encoding="utf-8").strip()


def status_of(run_dir: Path) -> str:
    return json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))["status"]


class At(Callback):
    """Does something once, at the first collect from a step on."""

    def __init__(self, timesteps: int, act: Any) -> None:
        self.timesteps, self.act = timesteps, act

    def on_collect(self, progress: Any) -> None:
        if self.act is not None and progress.timesteps >= self.timesteps:
            act, self.act = self.act, None
            act()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class TestTheModelAfterAnInterruption:
    @pytest.fixture
    def config(self, tiny):
        return tiny(total_timesteps=160, checkpoint_every_timesteps=32, learning_rate=3e-2)

    def test_ctrl_c_leaves_the_agent_of_the_last_checkpoint(self, config, tmp_path):
        model = PPO(config)
        untrained = weights(model)
        with pytest.raises(KeyboardInterrupt) as stop:
            model.learn(callbacks=[At(64, interrupt)])
        last = last_of(only_run(config))
        assert last.name == "step_64"
        assert str(last) in str(stop.value)
        assert model.agent.timesteps == 64
        model.save(tmp_path / "x")
        saved = weights(PPO.load(tmp_path / "x"))
        assert same(saved, weights(PPO.load(last)))
        assert not same(saved, untrained)

    def test_learning_again_finishes_the_run_that_was_interrupted(self, config, tmp_path):
        model = PPO(config)
        with pytest.raises(KeyboardInterrupt):
            model.learn(callbacks=[At(64, interrupt)])
        model.learn()
        run_dir = only_run(config)  # the same folder
        assert (model.agent.timesteps, status_of(run_dir)) == (160, "finished")
        whole = PPO(config.with_overrides(output_dir=str(tmp_path / "whole"))).learn()
        assert same(weights(model), weights(whole))
        model.learn(32)  # and then it is a finished run like any other
        assert model.agent.timesteps == 192

    def test_a_number_after_an_interruption_is_so_many_steps_more(self, config):
        model = PPO(config)
        with pytest.raises(KeyboardInterrupt):
            model.learn(callbacks=[At(64, interrupt)])
        assert model.learn(32).agent.timesteps == 96

    def test_a_fault_of_the_environment_leaves_the_agent_of_the_last_checkpoint(self, config):
        model = PPO(
            config.with_overrides(env_id="tiny_envs:Faulty-v0", env_kwargs={"fail_after": 40})  # 80 steps
        )
        untrained = weights(model)
        with pytest.raises(EnvironmentFault, match=r"last good checkpoint: .*step_64"):
            model.learn()
        assert model.agent.timesteps == 64
        assert not same(weights(model), untrained)

    def test_a_fault_of_a_callback_names_the_last_checkpoint_too(self, config):
        def fail() -> None:
            raise LookupError("mine")

        model = PPO(config)
        with pytest.raises(LookupError, match="mine") as fault:
            model.learn(callbacks=[At(96, fail)])
        assert model.agent.timesteps == 64
        assert f"last good checkpoint: {last_of(only_run(config))}" in fault.value.__notes__

    def test_a_pause_in_the_first_reset_is_gone_on_with(self, tiny):
        class SlowStart(tiny_envs.Clockwork):
            seconds = 1.0

            def reset(self, **kwargs: Any) -> Any:
                time.sleep(self.seconds)
                return super().reset(**kwargs)

        config = tiny(total_timesteps=64, max_time=0.4, rebuild_envs="off")
        model = PPO(config, env=SlowStart).learn()
        run_dir = only_run(config)
        assert status_of(run_dir) == "paused"
        SlowStart.seconds = 0.0
        model.config = config.with_overrides(max_time=60.0)  # a busy machine may need more than a moment
        assert model.learn().agent.timesteps == 64
        assert (only_run(config), status_of(run_dir)) == (run_dir, "finished")

    def test_a_pause_by_the_clock_is_gone_on_with(self, tiny):
        model = PPO(tiny(env_id="tiny_envs:Slow-v0", total_timesteps=64, max_time=0.4))
        assert model.learn().agent.timesteps == 32
        assert model.learn().agent.timesteps == 64

    def test_ctrl_c_while_it_is_loaded_again_does_not_begin_anew(self, config, monkeypatch):
        """The default handler is back by then."""
        model = PPO(config)
        with monkeypatch.context() as patch:
            patch.setattr("rl_training.experiment.loading.load_agent", stopped)
            with pytest.raises(KeyboardInterrupt):
                model.learn()
        assert model.agent.timesteps == 160
        assert model.learn(32).agent.timesteps == 192

    def test_an_environment_that_cannot_be_built_again_does_not_hide_the_interrupt(self, config):
        class Once:
            broken = False

            def __call__(self, **kwargs: Any) -> gymnasium.Env:
                if self.broken:
                    raise OSError("the port is taken")
                return tiny_envs.Clockwork(**kwargs)

        factory = Once()

        def stop() -> None:
            factory.broken = True
            interrupt()

        model = PPO(config, env=factory)
        with pytest.raises(KeyboardInterrupt):
            model.learn(callbacks=[At(64, stop)])
        factory.broken = False
        assert model.learn(32).agent.timesteps == 96

    def test_a_run_that_did_not_come_to_its_first_checkpoint_changes_nothing(self, config, monkeypatch):
        model = PPO(config).learn(64)
        before = weights(model)
        with monkeypatch.context() as patch:
            patch.setattr("rl_training.experiment.run.Run.save", stopped)
            with pytest.raises(KeyboardInterrupt):
                model.learn(64)
        assert same(weights(model), before)
        assert model.learn(64).agent.timesteps == 128

    def test_the_model_outlives_its_folder(self, config):
        model = PPO(config).learn()
        shutil.rmtree(config.output_dir)
        assert model.agent.timesteps == 160
        model.predict(np.zeros(3))

    def test_a_signal_during_the_update_pauses_after_that_update(self, config):
        class During(Callback):
            def on_update(self, progress: Any, result: Any) -> None:
                if progress.timesteps == 32:
                    interrupt()

        with pytest.raises(Interrupted) as stop:
            train(config, callbacks=[During()])
        assert stop.value.timesteps == 32


def stopped(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


class TestInsideOfACallback:
    def test_the_context_has_the_live_agent_the_folder_and_the_facts(self, tiny, tmp_path):
        seen: dict[str, Any] = {}

        class Look(Callback):
            def on_start(self, context: TrainingContext) -> None:
                self.context = context
                seen["start"] = context.start.timesteps
                with pytest.raises(AttributeError):
                    context.run_dir = tmp_path  # type: ignore[misc]

            def on_update(self, progress: Any, result: Any) -> None:
                agent = self.context.agent
                assert agent.timesteps == progress.timesteps
                seen[progress.timesteps] = {n: t.clone() for n, t in agent.state["model"].items()}
                if progress.timesteps == 64:
                    agent.save(tmp_path / "half")
                    seen["evaluated"] = agent.evaluate(2)["num_episodes"]
                    seen["predicted"] = agent.predict(np.zeros(3)).shape

        config = tiny(total_timesteps=96, learning_rate=3e-2)
        look = Look()
        model = PPO(config).learn(callbacks=[look])
        assert look.context.run_dir == only_run(config)
        assert look.context.config == config.with_overrides(rebuild_envs="off")  # resolved
        assert (seen["start"], seen["evaluated"], seen["predicted"]) == (0, 2, ())
        assert not same(seen[32], seen[64])
        assert not same(seen[64], seen[96])
        half = PPO.load(tmp_path / "half")
        assert half.agent.timesteps == 64
        assert same(weights(half), seen[64])
        assert same(weights(model), seen[96])
        assert half.learn(32).agent.timesteps == 96, "what a callback saved can be trained on"

    def test_the_model_is_the_one_that_learns(self, tiny, tmp_path):
        config = tiny(total_timesteps=96, learning_rate=3e-2)
        model = PPO(config)
        found = []

        def act() -> None:
            found.append((model.agent.timesteps, weights(model), model.evaluate(2)["num_episodes"]))
            model.predict(np.zeros(3))
            model.save(tmp_path / "live")

        model.learn(callbacks=[At(64, act)])
        (timesteps, live, episodes) = found[0]
        assert (timesteps, episodes) == (64, 2)
        assert same(weights(PPO.load(tmp_path / "live")), live)
        assert not same(live, weights(PPO(config)))

    def test_looking_changes_nothing(self, tiny, tmp_path):
        class Busy(Callback):
            def on_start(self, context: TrainingContext) -> None:
                self.agent = context.agent

            def on_update(self, progress: Any, result: Any) -> None:
                self.agent.evaluate(2, deterministic=False)
                self.agent.save(tmp_path / "agent")

        config = tiny(env_id="tiny_envs:Lottery-v0", total_timesteps=96)
        busy = PPO(config).learn(callbacks=[Busy()])
        assert same(weights(busy), weights(PPO(config).learn()))

    def test_metrics_of_its_own_are_columns(self, tiny, rows):
        class Own(Callback):
            def on_start(self, context: TrainingContext) -> None:
                self.log = context.log

            def on_update(self, progress: Any, result: Any) -> None:
                self.log("mine/steps", progress.timesteps)

            def on_evaluate(self, progress: Any, summary: Any) -> None:
                self.log("mine/score", 2 * summary["mean_reward"])

        config = tiny(total_timesteps=128, log_every_timesteps=64, checkpoint_every_timesteps=32)
        table = rows(train(config, callbacks=[Own()]).run_dir / "metrics.jsonl")
        assert [row["mine/steps"] for row in table] == [48.0, 112.0]
        assert table[1]["mine/score"] == 2 * table[1]["eval/mean_reward"]
        assert "mine/score" not in table[0]

        class Crash(Own):
            def on_collect(self, progress: Any) -> None:
                if progress.timesteps == 64:
                    raise LookupError

        with pytest.raises(LookupError):
            train(config.with_overrides(seed=2), callbacks=[Crash()])
        crashed = max(Path(config.output_dir).iterdir(), key=lambda path: path.stat().st_mtime_ns)
        table = rows(resume(crashed, callbacks=[Own()]).run_dir / "metrics.jsonl")
        assert [row["mine/steps"] for row in table] == [48.0, 112.0], "half of a row's numbers came before"

    @pytest.mark.parametrize("event", ["on_start", "on_end"])
    def test_a_stop_is_a_stop_in_every_event(self, tiny, event):
        def stop(*_: Any) -> None:
            raise StopTraining("enough")

        callback = Callback()
        setattr(callback, event, stop)
        result = train(tiny(), callbacks=[callback])
        assert result.metrics["global_step"] == (0 if event == "on_start" else 64)
        assert status_of(result.run_dir) == ("stopped" if event == "on_start" else "finished")

    def test_a_refused_save_is_a_fault_like_any_other(self, tiny, tmp_path):
        (tmp_path / "taken").write_text("mine")
        config = tiny(total_timesteps=96, checkpoint_every_timesteps=32)
        model = PPO(config)
        with pytest.raises(UserError) as fault:
            model.learn(callbacks=[At(64, lambda: model.save(tmp_path / "taken"))])
        run_dir = only_run(config)
        assert (status_of(run_dir), (run_dir / "error.txt").exists()) == ("failed", True)
        assert f"last good checkpoint: {last_of(run_dir)}" in fault.value.__notes__

    def test_what_it_saves_has_the_statistics_of_the_wrappers(self, tiny, tmp_path):
        def build(**_: Any) -> gymnasium.Env:
            return gymnasium.wrappers.NormalizeObservation(tiny_envs.Clockwork())

        model = PPO(tiny(total_timesteps=96), env=build)
        model.learn(callbacks=[At(64, lambda: model.save(tmp_path / "half"))])
        counts = []

        class Count(Callback):
            def on_start(self, context: TrainingContext) -> None:
                (moments,) = context.agent.state["sampler"]["envs"]["statistics"]["0"].values()
                counts.append(moments["count"])

        PPO.load(tmp_path / "half", env=build).learn(32, callbacks=[Count()])
        assert 30 < float(counts[-1]) < 40, "32 steps of one environment came before"


class Halved(PPO):
    """Builds what PPO builds, and then changes it."""

    built: ClassVar[list[int]] = []

    @staticmethod
    def build_actor(settings: Any, context: Any) -> Any:
        actor = PPO.build_actor(settings, context)
        with torch.no_grad():
            for parameter in actor.policy.parameters():
                parameter.mul_(0.5)
        Halved.built.append(context.spec.num_envs)
        return actor


class TestAClassWithItsOwnBuild:
    def test_it_is_used(self, tiny):
        config = tiny(learning_rate=1e-30)
        plain, own = PPO(config), Halved(config)
        first, second = weights(plain), weights(own)
        assert all(torch.equal(second[name], first[name] * 0.5) for name in first)
        Halved.built.clear()
        own.learn()
        assert Halved.built
        assert all(torch.allclose(weights(own)[name], first[name] * 0.5) for name in first)

    def test_load_and_resume_use_it(self, tiny, tmp_path, cli):
        config = tiny(total_timesteps=64, checkpoint_every_timesteps=32)
        model = Halved(config)
        with pytest.raises(KeyboardInterrupt):
            model.learn(callbacks=[At(32, interrupt)])
        run_dir = only_run(config)
        assert type(Halved.load(run_dir)) is Halved
        model.save(tmp_path / "agent")
        assert type(Halved.load(tmp_path / "agent")) is Halved
        for load in (PPO.load, rl_training.load):
            assert type(load(run_dir)) is Halved
        Halved.built.clear()
        assert cli("resume", run_dir).code == 0
        assert Halved.built
        assert resume(run_dir, algorithm=Halved, total_timesteps=96).metrics["global_step"] == 96

    def test_one_that_was_killed_before_its_first_checkpoint_is_known_too(self, tiny):
        for given in (None, Halved):
            run_dir = make_run_dir(Halved(tiny()).config)
            Halved.built.clear()
            assert resume(run_dir, algorithm=given).metrics["global_step"] == 64
            assert Halved.built

    def test_one_without_loads_what_its_parent_trained(self, tiny):
        class Named(PPO):
            """Only another name."""

        run_dir = train(tiny()).run_dir
        assert type(Named.load(run_dir)) is Named


class TestAnEvaluationThatNeverEnds:
    @pytest.mark.filterwarnings("always::UserWarning")
    def test_the_cap_is_said_and_marked(self, tiny, rows, cli):
        config = tiny(env_id="tiny_envs:Endless-v0", max_eval_episode_steps=50, eval_every_timesteps=32)
        with pytest.warns(
            UserWarning, match=r"2 of 2 evaluation episodes .* 50 steps \(max_eval_episode_steps\)"
        ):
            result = train(config)
        for row in rows(result.run_dir / "evaluations.jsonl"):
            assert (row["num_capped_episodes"], row["lengths"]) == (2, [50, 50])
        outcome = cli("eval", result.run_dir, "--num-episodes", 1, "--json")
        assert json.loads(outcome.out)["num_capped_episodes"] == 1
        assert "max_eval_episode_steps" in outcome.warnings[0]

    @pytest.mark.filterwarnings("always::UserWarning")
    def test_a_video_of_it_is_cut_off_too(self, tmp_path, cli):
        pytest.importorskip("imageio_ffmpeg")
        config = TrainConfig(
            algo="ppo", env_id="CliffWalking-v1", output_dir=str(tmp_path), total_timesteps=16, num_envs=1,
            num_eval_episodes=1, max_eval_episode_steps=20, algorithm=PPOConfig(num_steps=16, batch_size=16),
        )  # fmt: skip
        with pytest.warns(UserWarning, match="max_eval_episode_steps"):
            result = train(config)
        outcome = cli("eval", result.run_dir, "--num-episodes", 1, "--record", tmp_path / "videos")
        assert outcome.code == 0
        (video,) = (tmp_path / "videos").iterdir()
        assert f"{video} is cut off" in outcome.err
        assert f"video: {video}" in outcome.out

    def test_the_default_is_generous_but_there(self, tiny):
        """More than the longest games of Atari take, which are cut after 27,000 steps."""
        assert 27_000 < tiny().max_eval_episode_steps < 10**6

    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
    @pytest.mark.parametrize("together", [True, False])
    def test_a_signal_ends_it_at_once(self, tiny, rows, tmp_path, signum, together):
        """With the checkpoint due before it, or else with one written then; the evaluation is made up for."""
        every = {"checkpoint_every_timesteps": 64 if together else 0, "eval_every_timesteps": 64}
        config = tiny(total_timesteps=160, rebuild_envs="off", use_action_masks="off", **every)
        hanging = HangInEvaluation(signum)
        with pytest.raises(Interrupted) as stop:
            train(config, factory=hanging)
        run_dir = only_run(config)
        assert (stop.value.timesteps, last_of(run_dir).name) == (64, "step_64")
        assert status_of(run_dir) == "paused"
        assert rows(run_dir / "evaluations.jsonl") == []
        again = resume(run_dir, factory=tiny_envs.Clockwork)
        whole = train(config.with_overrides(output_dir=str(tmp_path / "whole")), factory=tiny_envs.Clockwork)
        for name in ("evaluations.jsonl", "checkpoints/best"):
            assert (run_dir / name).read_text() == (whole.run_dir / name).read_text()
        assert [row["timesteps"] for row in rows(run_dir / "evaluations.jsonl")] == [64, 128, 160]
        for name in ("model.safetensors", "trainer.safetensors"):
            paths = [each.checkpoint_path / name for each in (again, whole)]
            assert paths[0].exists() == paths[1].exists()
            assert not paths[0].exists() or paths[0].read_bytes() == paths[1].read_bytes()

    def test_it_leaves_the_global_generators_as_they_were(self, tiny, tmp_path):
        """An environment may use them, and the evaluation is made anew."""
        found = []
        for factory, callbacks in (
            (HangInEvaluation(signal.SIGTERM), []),
            (tiny_envs.Clockwork, [At(64, interrupt)]),
        ):
            config = tiny(
                total_timesteps=160, rebuild_envs="off", use_action_masks="off", eval_every_timesteps=64
            )
            config = config.with_overrides(output_dir=str(tmp_path / str(len(found))))
            with pytest.raises(Interrupted):
                train(config, factory=factory, callbacks=callbacks)
            manifest = json.loads((last_of(only_run(config)) / "manifest.json").read_text(encoding="utf-8"))
            found.append(manifest["state"]["generators"]["numpy"])
        assert found[0] == found[1]

    def test_a_time_limit_ends_it_too(self, tiny, rows):
        config = tiny(env_id="tiny_envs:Endless-v0", total_timesteps=64, max_time=1.0)
        started = time.monotonic()
        result = train(config.with_overrides(max_eval_episode_steps=10**12))
        assert time.monotonic() - started < 10
        assert result.paused
        assert result.stop_reason == "time limit of 1 s reached"
        assert (result.metrics["global_step"], result.checkpoint_path.name) == (64, "step_64")
        assert rows(result.run_dir / "evaluations.jsonl") == []

    @pytest.mark.parametrize("when", ["reset", "replay"])
    def test_resets_and_replays_are_interrupted_at_once(self, tiny, when, rows):
        config = tiny(
            total_timesteps=160, checkpoint_every_timesteps=32, rebuild_envs="off", use_action_masks="off"
        )
        run_dir = None
        if when == "replay":
            with pytest.raises(KeyboardInterrupt):
                train(config.with_overrides(env_id="tiny_envs:Endless-v0"), callbacks=[At(64, interrupt)])
            run_dir = only_run(config)
        hanging = HangIn("reset" if when == "reset" else "step")
        with pytest.raises(Interrupted) as stop:
            train(config, factory=hanging) if run_dir is None else resume(run_dir, factory=hanging)
        run_dir = only_run(config)
        assert stop.value.timesteps == (0 if when == "reset" else 64)
        assert status_of(run_dir) == "paused"
        factory = tiny_envs.Clockwork if when == "reset" else tiny_envs.Endless
        again = resume(run_dir, factory=factory) if when == "reset" else None
        assert again is None or again.metrics["global_step"] == 160


class HangInEvaluation:
    """Builds clocks; those for evaluation, which are built last, hang after a few steps until a signal comes."""

    def __init__(self, signum: int) -> None:
        self.signum, self.count = signum, 0

    def __call__(self, **kwargs: Any) -> gymnasium.Env:
        self.count += 1
        env = tiny_envs.Clockwork(**kwargs)
        if self.count > 2:  # two are for training
            env = HangingEnv(self.signum)
        return env


class HangingEnv(tiny_envs.Clockwork):
    def __init__(self, signum: int) -> None:
        super().__init__(length=10**9)
        self.signum = signum

    def step(self, action: Any) -> Any:
        np.random.random()
        if self.time == 3:
            os.kill(os.getpid(), self.signum)
            time.sleep(30)
        return super().step(action)


class HangIn:
    """Builds environments whose first reset, or first step, never comes back; a signal is on its way."""

    def __init__(self, method: str) -> None:
        self.method = method

    def __call__(self, **kwargs: Any) -> gymnasium.Env:
        env = tiny_envs.Endless() if self.method == "step" else tiny_envs.Clockwork()

        def hang(*_: Any, **__: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)

        setattr(env, self.method, hang)
        return env


class Killed(BaseException):
    """Stands for SIGKILL: nothing that the run does afterwards counts."""


class TestStopsAndBudgetsSurvive:
    def test_a_run_killed_after_its_stop_does_not_go_past_it(self, tiny, monkeypatch, rows):
        config = tiny(
            total_timesteps=320, eval_every_timesteps=32, checkpoint_every_timesteps=32, stop_at_reward=0.0
        )
        run_dir = self.killed_before_its_metadata(config, monkeypatch)
        result = resume(run_dir)
        assert result.metrics["global_step"] == 32
        assert "reached 0" in result.stop_reason
        assert status_of(run_dir) == "stopped"
        assert len(rows(run_dir / "evaluations.jsonl")) == 1
        longer = resume(run_dir, total_timesteps=64)
        assert longer.metrics["global_step"] == 64

    def test_a_plateau_stays_one(self, tiny, monkeypatch):
        config = tiny(
            total_timesteps=3200, eval_every_timesteps=32, learning_rate=1e-30, stop_after_stale_evals=2
        )
        run_dir = self.killed_before_its_metadata(config, monkeypatch)
        result = resume(run_dir)
        assert result.metrics["global_step"] == 96
        assert status_of(run_dir) == "stopped"

    def test_a_stop_by_a_callback_is_followed_by_its_last_evaluation(self, tiny, monkeypatch, rows):
        """Killed in between, the resumed run makes the evaluation and nothing else."""
        config = tiny(total_timesteps=320, checkpoint_every_timesteps=32)

        def stop() -> None:
            raise StopTraining("enough")

        with monkeypatch.context() as patch:
            patch.setattr("rl_training.experiment.run.evaluate_policy", self.killed)
            with pytest.raises(Killed):
                train(config, callbacks=[At(64, stop)])
        run_dir = only_run(config)
        result = resume(run_dir)
        assert (result.metrics["global_step"], result.stop_reason) == (64, "enough")
        assert [row["timesteps"] for row in rows(run_dir / "evaluations.jsonl")] == [64]

    def test_an_extension_that_is_killed_at_once_is_not_forgotten(self, tiny, monkeypatch, tmp_path):
        config = tiny(total_timesteps=64, env_id="tiny_envs:Lottery-v0")
        run_dir = train(config).run_dir
        with monkeypatch.context() as patch:
            patch.setattr("rl_training.runtime.sampler.LocalSampler.collect", self.killed)
            with pytest.raises(Killed):
                resume(run_dir, total_timesteps=160)
        assert load_config(run_dir / "config.yaml").total_timesteps == 160
        result = resume(run_dir)
        assert result.metrics["global_step"] == 160
        whole = train(config.with_overrides(output_dir=str(tmp_path / "whole")))
        whole = resume(whole.run_dir, total_timesteps=160)
        models = [(each.checkpoint_path / "model.safetensors").read_bytes() for each in (result, whole)]
        assert models[0] == models[1]

    def test_an_extension_that_is_interrupted_in_its_replay_is_not_forgotten(self, tiny):
        config = tiny(
            total_timesteps=64, env_id="tiny_envs:Endless-v0", rebuild_envs="off", max_eval_episode_steps=9
        )
        with pytest.warns(UserWarning, match="max_eval_episode_steps"):
            run_dir = train(config).run_dir
        with pytest.raises(Interrupted):
            resume(run_dir, total_timesteps=160, factory=HangIn("step"))
        with pytest.warns(UserWarning, match="max_eval_episode_steps"):
            assert resume(run_dir).metrics["global_step"] == 160

    def test_a_stopped_run_whose_extension_is_killed_goes_on(self, tiny, monkeypatch):
        config = tiny(total_timesteps=320, eval_every_timesteps=32, stop_at_reward=0.0)
        run_dir = train(config).run_dir
        with monkeypatch.context() as patch:
            patch.setattr("rl_training.experiment.hosting.LocalEngine", self.killed)
            with pytest.raises(Killed):
                resume(run_dir, total_timesteps=64)
        assert status_of(run_dir) == "stopped"
        assert resume(run_dir).metrics["global_step"] == 64

    def test_a_budget_that_is_spent_already_is_refused(self, tiny):
        config = tiny(total_timesteps=160, checkpoint_every_timesteps=32)
        with pytest.raises(KeyboardInterrupt):
            train(config, callbacks=[At(96, interrupt)])
        with pytest.raises(UserError, match="has already done 96 steps; use --total-timesteps 96 or more"):
            resume(only_run(config), total_timesteps=64)

    def test_an_extended_run_is_still_signed(self, tiny, monkeypatch):
        """Also if its module is not imported again."""
        run_dir = train(tiny(total_timesteps=64)).run_dir
        monkeypatch.setattr("rl_training.experiment.checkpoints.format.imports_nothing", lambda _: False)
        with monkeypatch.context() as patch:
            patch.setattr("rl_training.runtime.sampler.LocalSampler.collect", self.killed)
            with pytest.raises(Killed):
                resume(run_dir, total_timesteps=160)
        assert read_checkpoint(last_of(run_dir)).signed

    def test_the_budget_in_the_config_file_never_says_more_than_the_checkpoint(self, tiny, monkeypatch):
        run_dir = train(tiny(total_timesteps=64)).run_dir
        with monkeypatch.context() as patch:
            patch.setattr("rl_training.experiment.resume.write_checkpoint", self.killed)
            with pytest.raises(Killed):
                resume(run_dir, total_timesteps=160)
        assert load_config(run_dir / "config.yaml").total_timesteps == 64

    @staticmethod
    def killed(*_: Any, **__: Any) -> Any:
        raise Killed

    def killed_before_its_metadata(self, config: Any, monkeypatch: Any) -> Path:
        with monkeypatch.context() as patch:
            patch.setattr("rl_training.experiment.run.plot_learning_curve", self.killed)
            with pytest.raises(Killed):
                train(config)
        run_dir = only_run(config)
        path = run_dir / "metadata.json"
        data = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(data | {"status": "running"}), encoding="utf-8")
        return run_dir


class TestTheFirstInstant:
    def test_a_run_folder_appears_with_its_config(self, tiny):
        config = tiny()
        run_dir = make_run_dir(config)
        assert sorted(path.name for path in run_dir.iterdir()) == [".origin.json", "config.yaml"]
        assert load_config(run_dir / "config.yaml") == config
        assert list(Path(config.output_dir).iterdir()) == [run_dir]

    def test_a_run_killed_before_its_first_checkpoint_begins_again(self, tiny, tmp_path, cli):
        config = tiny(total_timesteps=96)
        run_dir = make_run_dir(config)  # and then the power failed
        outcome = cli("resume", run_dir, "--quiet")
        assert (outcome.code, outcome.err) == (0, "")
        whole = train(config.with_overrides(output_dir=str(tmp_path / "whole")))
        assert (last_of(run_dir) / "model.safetensors").read_bytes() == (
            whole.checkpoint_path / "model.safetensors"
        ).read_bytes()
        assert status_of(run_dir) == "finished"

    def test_a_run_begun_from_an_agent_begins_again_from_it(self, tiny, monkeypatch):
        first = train(tiny(total_timesteps=64))
        with monkeypatch.context() as patch:
            patch.setattr("rl_training.experiment.run.Run.save", stopped)
            with pytest.raises(KeyboardInterrupt):
                train(tiny(total_timesteps=128), start_from=first.checkpoint_path)
        (killed,) = (path for path in first.run_dir.parent.iterdir() if path != first.run_dir)
        assert resume(killed).metrics["global_step"] == 128
        whole = train(tiny(total_timesteps=128), start_from=first.checkpoint_path)
        assert (last_of(killed) / "model.safetensors").read_bytes() == (
            whole.checkpoint_path / "model.safetensors"
        ).read_bytes()

    def test_a_run_that_lost_its_checkpoints_is_not_begun_again(self, tiny, cli):
        """Its metrics would be lost as well."""
        run_dir = train(tiny()).run_dir
        shutil.rmtree(run_dir / "checkpoints")
        before = (run_dir / "metrics.jsonl").read_bytes()
        outcome = cli("resume", run_dir)
        assert outcome.code == 2
        assert f"{run_dir} has no checkpoint to resume from" in outcome.sentence
        assert (run_dir / "metrics.jsonl").read_bytes() == before

    @pytest.mark.parametrize("name", ["", "checkpoints/step_32", "last"])
    def test_a_run_without_its_metadata_goes_on(self, tiny, name):
        config = tiny(total_timesteps=96, checkpoint_every_timesteps=32)
        with pytest.raises(KeyboardInterrupt):
            train(config, callbacks=[At(64, interrupt)])
        run_dir = only_run(config)
        (run_dir / "metadata.json").unlink()
        assert resume(run_dir / name).metrics["global_step"] == 96
        assert status_of(run_dir) == "finished"
