"""Train APPO of Sample Factory on a task and print its steps per second as JSON; runs in a venv that has it."""

import json
import os
import tempfile
from typing import Any

import gymnasium
import numpy as np
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from tasks import TASKS, WORKERS, Stopwatch, arguments, breakout

AT_MOST = 600
"""Seconds after which training ends without a result."""


def make_cartpole(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    """Return one CartPole."""
    return gymnasium.make(TASKS["cartpole"].env_id, render_mode=render_mode)


def make_breakout(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    """Return one Breakout with four stacked frames, channels first."""
    return gymnasium.wrappers.TransformObservation(
        gymnasium.wrappers.FrameStack(breakout(scaled=False), 4), np.asarray
    )


class Measure(AlgoObserver):
    """Looks at the steps after every training step, and ends the run once there is a result."""

    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        """Note the steps; the budget, which the runner checks next, ends the run."""
        self.watch.look(sum(runner.env_steps.values()))
        if self.watch.done:
            runner.cfg.train_for_env_steps = 0


def settings(task_name: str, folder: str) -> list[str]:
    """Return a task as the command line of Sample Factory."""
    task = TASKS[task_name]
    values: dict[str, Any] = {
        "algo": "APPO", "env": task_name, "experiment": task_name, "train_dir": folder, "device": "cpu", "seed": 1,
        "num_workers": WORKERS, "num_envs_per_worker": task.envs_per_worker, "rollout": task.num_steps,
        "batch_size": task.batch_size, "num_batches_per_epoch": task.rows // task.batch_size,
        "num_epochs": task.epochs, "learning_rate": task.learning_rate, "gamma": task.gamma,
        "gae_lambda": task.gae_lambda, "ppo_clip_ratio": task.clip, "exploration_loss_coeff": task.entropy,
        "value_loss_coeff": 0.5, "max_grad_norm": 0.5, "use_rnn": False, "normalize_input": False,
        "normalize_returns": False, "save_every_sec": AT_MOST, "save_best_after": 10**12,
        "train_for_seconds": AT_MOST, "train_for_env_steps": 10**9, "env_frameskip": 1, "with_wandb": False,
        "decorrelate_experience_max_seconds": 0,
    }  # fmt: skip
    if task.images:
        values |= {"encoder_conv_architecture": "convnet_atari", "nonlinearity": "relu", "obs_scale": 255.0}
        lists = ["--encoder_conv_mlp_layers", "512"]
    else:
        values |= {"nonlinearity": "tanh", "actor_critic_share_weights": False}
        lists = ["--encoder_mlp_layers", "64", "64"]
    return [f"--{name}={value}" for name, value in values.items()] + lists


def main() -> None:
    """Train and print."""
    flags = arguments(__doc__)
    os.environ["OMP_NUM_THREADS"] = str(flags.threads)
    register_env("cartpole", make_cartpole)
    register_env("breakout", make_breakout)
    watch = Stopwatch(flags.warm_up, flags.seconds)
    with tempfile.TemporaryDirectory() as folder:
        parser, _ = parse_sf_args(settings(flags.task, folder))
        _, runner = make_runner(parse_full_cfg(parser, settings(flags.task, folder)))
        runner.register_observer(Measure(watch))
        runner.init()
        runner.run()
    if not watch.done:
        raise SystemExit("the training ended before the measurement")
    print(json.dumps(watch.found))


if __name__ == "__main__":
    main()
