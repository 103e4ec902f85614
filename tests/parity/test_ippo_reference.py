"""The package against examples/ippo_reference.py, in games of both kinds, in float64."""

from types import ModuleType
from typing import Any

import pytest
import torch
from parity_harness import GameParts, assert_close, load_script, moves, parameters_of

from rl_training.algorithms.ppo import PPOConfig

TOGETHER = {
    "game": "mpe2/simple_spread_v3",
    "api": "parallel",
    "num_envs": 3,
    "num_steps": 40,
    "batch_size": 96,
}
IN_TURNS = {"game": "classic/tictactoe_v3", "api": "aec", "num_envs": 6, "num_steps": 20, "batch_size": 40}
LONGER = {"game": "classic/connect_four_v3", "api": "aec", "num_envs": 4, "num_steps": 15, "batch_size": 16}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("ippo_reference")


@pytest.mark.parametrize(
    "settings", [TOGETHER, IN_TURNS, LONGER], ids=lambda each: each["game"].rpartition("/")[2]
)
def test_same_seed_gives_the_same_parameters_after_several_updates(
    script: ModuleType, settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    args = script.Args(total_timesteps=1500, seed=7, update_epochs=3, **settings)
    agent, mean_return = script.train(args)
    run = GameParts("ppo", PPOConfig, args)
    run.train()
    first = run.source.buffer
    initial = script.Agent(
        script.Game(args, 0).obs_size,
        script.Game(args, 0).num_actions,
        torch.Generator().manual_seed(args.seed),
    )
    assert max(moves(parameters_of(agent), parameters_of(initial))) > 1e-2, "nothing was learned"
    assert first.turns
    assert_close(run.parameters, parameters_of(agent), atol=1e-8)
    assert run.episodes.means()["rollout/ep_rew_mean"] == pytest.approx(mean_return, abs=1e-9)


def test_the_script_leaves_out_actions_whose_outcome_is_unknown(script: ModuleType) -> None:
    args = script.Args(**LONGER)
    games, agent = script.Games(args), None
    agent = script.Agent(games.games[0].obs_size, 7, torch.Generator().manual_seed(1))
    rollout = script.collect(agent, games, args, script.np.random.default_rng(1))
    known = script.advantages_and_returns(rollout, 0.99, 0.95)[2]
    dropped = rollout.valid & ~known
    assert dropped.sum() == args.num_envs, "one player of each game waits at the end"
    assert not dropped[:-2].any()
