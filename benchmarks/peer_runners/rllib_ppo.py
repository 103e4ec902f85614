"""Train PPO of RLlib on a task and print its steps per second as JSON; runs in a venv that has it."""

import json
import os
import warnings
from typing import Any

import gymnasium
import numpy as np
from tasks import TASKS, WORKERS, Stopwatch, arguments, breakout

OBJECT_STORE = 300 * 2**20


def make_breakout(env_config: Any) -> Any:
    """Return one Breakout with four stacked frames, scaled to [0, 1], channels last."""
    env = gymnasium.wrappers.FrameStackObservation(breakout(scaled=True), 4)
    space = gymnasium.spaces.Box(0.0, 1.0, (84, 84, 4), np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: np.moveaxis(obs, 0, -1), space)


def main() -> None:
    """Train and print."""
    flags = arguments(__doc__)
    task = TASKS[flags.task]
    os.environ["OMP_NUM_THREADS"] = str(flags.threads)  # Ray gives its workers one
    warnings.filterwarnings("ignore")
    import ray
    import torch
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    torch.set_num_threads(flags.threads)
    ray.init(
        address="local", num_cpus=WORKERS + 1, object_store_memory=OBJECT_STORE,  # never another one's cluster
        include_dashboard=False, log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}},
    )  # fmt: skip
    register_env("breakout", make_breakout)
    if task.images:
        # RLlib pads images by default, which would give a network more than twice as large
        filters = [(32, 8, 4, "valid"), (64, 4, 2, "valid"), (64, 3, 1, "valid")]
        model = DefaultModelConfig(
            conv_filters=filters, conv_activation="relu", head_fcnet_hiddens=[512], head_fcnet_activation="relu",
            vf_share_layers=True,
        )  # fmt: skip
    else:
        model = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    config = (
        PPOConfig()
        .environment("breakout" if task.images else task.env_id)
        .env_runners(
            num_env_runners=WORKERS,
            num_envs_per_env_runner=task.envs_per_worker,
            rollout_fragment_length=task.num_steps,
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=task.rows,
            minibatch_size=task.batch_size,
            num_epochs=task.epochs,
            lr=task.learning_rate,
            gamma=task.gamma,
            lambda_=task.gae_lambda,
            clip_param=task.clip,
            entropy_coeff=task.entropy,
            vf_loss_coeff=0.5,
            grad_clip=0.5,
            use_kl_loss=False,
        )
        .rl_module(model_config=model)
        .debugging(seed=1, log_level="ERROR")
    )
    algorithm = config.build_algo()
    watch, steps = Stopwatch(flags.warm_up, flags.seconds), 0
    try:
        while not watch.done:
            found = algorithm.train()
            steps = int(found["num_env_steps_sampled_lifetime"])
            watch.look(steps)
    finally:
        algorithm.stop()
        ray.shutdown()
    print(json.dumps(watch.found))


if __name__ == "__main__":
    main()
