"""The package against examples/ippo_reference.py, in games of both kinds, in float64."""

from types import ModuleType
from typing import Any

import pytest
import torch
from parity_harness import Driven, assert_close, load_script, moves, parameters_of

from rl_training.algorithms.ppo import PPOConfig
from rl_training.config import TrainConfig
from rl_training.core.types import Progress
from rl_training.envs.stepper_factory import training_stepper
from rl_training.experiment.building import build_parts
from rl_training.runtime.metrics import RecentEpisodes
from rl_training.runtime.sampler import LocalSampler

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


class GameRun(Driven):
    """The package's parts for the script's settings in a game."""

    def __init__(self, args: Any) -> None:
        names = ("num_steps", "batch_size", "update_epochs", "learning_rate", "gamma", "gae_lambda")
        names += ("clip_coef", "ent_coef", "vf_coef", "max_grad_norm")
        given = {name: getattr(args, name) for name in names}
        self.config = TrainConfig(
            algo="ppo",
            env_id=f"pettingzoo://{args.game}",
            seed=args.seed,
            total_timesteps=args.total_timesteps,
            num_envs=args.num_envs,
            algorithm=PPOConfig(**given, encoder="flat"),
        )
        self.stepper = training_stepper(self.config, None)
        parts = build_parts(self.config, self.stepper.spec)
        self.learner, self.source = parts.learner, parts.source
        self.sampler = LocalSampler(self.stepper, parts.actor.explorer, self.source)
        self.progress = Progress(total_timesteps=self.config.total_timesteps)
        self.episodes = RecentEpisodes()
        self.stepper.reset()

    @property
    def parameters(self) -> list[torch.Tensor]:
        network = self.learner.policy.network
        modules = (network.actor_body, network.actor_head, network.critic_body, network.critic_head)
        return [tensor for module in modules for tensor in parameters_of(module)]


@pytest.mark.parametrize(
    "settings", [TOGETHER, IN_TURNS, LONGER], ids=lambda each: each["game"].rpartition("/")[2]
)
def test_same_seed_gives_the_same_parameters_after_several_updates(
    script: ModuleType, settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    args = script.Args(total_timesteps=1500, seed=7, update_epochs=3, **settings)
    agent, mean_return = script.train(args)
    run = GameRun(args)
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
