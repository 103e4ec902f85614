"""The package against examples/mappo_reference.py, in float64."""

from types import ModuleType

import pytest
import torch
from parity_harness import GameParts, assert_close, load_script, moves, parameters_of

from rl_training.algorithms.mappo import MAPPOConfig

SETTINGS = {"num_envs": 3, "num_steps": 30, "batch_size": 64, "update_epochs": 3, "max_cycles": 12, "seed": 7}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("mappo_reference")


def test_same_seed_gives_the_same_parameters_after_several_updates(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    args = script.Args(total_timesteps=1000, **SETTINGS)
    agent, mean_return = script.train(args)
    run = GameParts("mappo", MAPPOConfig, args, env_kwargs={"max_cycles": args.max_cycles})
    initial = script.new_agent(script.Games(args), args)
    assert_close(run.parameters, parameters_of(initial), atol=1e-12)
    run.train()
    assert max(moves(parameters_of(agent), parameters_of(initial))) > 1e-2, "nothing was learned"
    assert_close(run.parameters, parameters_of(agent), atol=1e-8)
    assert run.episodes.means()["rollout/ep_rew_mean"] == pytest.approx(mean_return, abs=1e-9)


def test_the_critic_of_the_script_reads_the_state(script: ModuleType) -> None:
    args = script.Args(**SETTINGS)
    games = script.Games(args)
    agent = script.new_agent(games, args)
    other = games.state() + 1.0
    assert not torch.equal(agent.value(games.obs(), games.state()), agent.value(games.obs(), other))
