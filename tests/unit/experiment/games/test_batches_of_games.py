"""How large minibatches may be where several agents share a policy: a rollout has a row for each of them."""

from dataclasses import replace
from typing import Any

import pytest

from rl_training.algorithms import PPO, RecurrentPPO
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, UserError
from rl_training.experiment.building import refuse_task
from support.game_rows import game_stepper
from support.games import JointGame, Plot, Role

GAME = "pettingzoo://family/name"


def config(batch_size: int, algorithm: Any = PPO, **settings: Any) -> TrainConfig:
    own = algorithm.config_class(num_steps=16, batch_size=batch_size)
    return TrainConfig(algo=algorithm.name, num_envs=2, algorithm=own, **{"env_id": GAME, **settings})


@pytest.mark.parametrize("algorithm", [PPO, RecurrentPPO])
@pytest.mark.parametrize(("policies", "rows"), [("shared", 96), ("each", 32)])
def test_a_batch_has_at_most_the_rows_of_the_agents_that_share_a_policy(algorithm, policies, rows):
    stepper = game_stepper(lambda **_: JointGame(Plot((Role(), Role(), Role()))), policies=policies)
    spec = replace(stepper.spec, game=stepper.game)
    stepper.close()
    refuse_task(algorithm, config(rows, algorithm, policies=policies), spec)
    with pytest.raises(UserError, match=f"batch_size is {rows + 16}, but .* = {rows} rows"):
        refuse_task(algorithm, config(rows + 16, algorithm, policies=policies), spec)


def test_a_single_agent_is_refused_before_its_environment_is_built():
    with pytest.raises(
        ConfigError, match=r"batch_size is 33, but .* num_steps \* num_envs = 16 \* 2 = 32 rows"
    ):
        config(33, env_id="CartPole-v1")
