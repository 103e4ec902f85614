"""Evaluates a policy with the settings of a config."""

import warnings

from rl_training.config import TrainConfig
from rl_training.core.protocols import EnvStepper, Policy
from rl_training.core.seeding import EVALUATION_ACTIONS, evaluation_generators, numpy_generator
from rl_training.core.types import Evaluation
from rl_training.runtime.evaluator import Evaluator


def evaluate_policy(
    config: TrainConfig,
    stepper: EnvStepper,
    policy: Policy,
    num_episodes: int,
    *,
    deterministic: bool | None = None,
) -> Evaluation:
    """Play `num_episodes` as the config specifies; warn about episodes that reach `max_eval_episode_steps`."""
    with evaluation_generators(config.seed):
        evaluation = Evaluator(stepper, policy).evaluate(
            num_episodes,
            deterministic=config.eval_deterministic if deterministic is None else deterministic,
            rng=numpy_generator(config.seed, EVALUATION_ACTIONS),
            max_episode_steps=config.max_eval_episode_steps,
        )
    if evaluation.num_capped:
        warnings.warn(
            f"{evaluation.num_capped} of {num_episodes} evaluation episodes did not end within "
            f"{config.max_eval_episode_steps:,} steps (max_eval_episode_steps) and were cut off; their returns are "
            "partial",
            stacklevel=2,
        )
    return evaluation
