"""Evaluations of a run by games against another player: the setting `eval_against`."""

from pathlib import Path

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.games import Game
from rl_training.core.protocols import Policy
from rl_training.core.seeding import evaluation_generators
from rl_training.core.types import EnvSpec, Evaluation
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.agent import Agent
from rl_training.experiment.games.judging import check_players, judge, rules_of
from rl_training.experiment.games.opponents import (
    RANDOM,
    SELF,
    agent_player,
    find_player,
    is_function_name,
    opponent_agent,
    refuse_other_game,
    sides_of,
)
from rl_training.experiment.games.players import Player, PolicyPlayer
from rl_training.experiment.loading import load_agent

FOLDER = "eval_against"
"""Folder in a run with a copy of the agent that evaluations play against, which may be trained on, or deleted."""
SETTING = "eval_against"
AGENT_OPENINGS = 2
"""Random moves at the start of each game against an agent: two that never sample would repeat a single game."""


class EvaluationOpponent:
    """Who plays the other seats in the evaluations of a run."""

    def __init__(self, player: Player, agent: Agent | None = None) -> None:
        """`agent` is that of the player, if it has one."""
        self.player, self.agent = player, agent

    def write(self, folder: Path) -> None:
        """Copy the agent into a run folder."""
        if self.agent is not None:
            self.agent.save(folder / FOLDER)

    def evaluate(
        self, config: TrainConfig, factory: EnvFactory | None, game: Game, policy: Policy
    ) -> Evaluation:
        """Play the games of an evaluation, in which the policy takes all seats in turn."""
        sides = sides_of(game)
        learner = PolicyPlayer(game, policy, config, "learner", deterministic=config.eval_deterministic)
        judged = judge(
            rules_of(config, factory, sides),
            learner,
            self.player,
            games=config.num_eval_episodes,
            seed=config.seed,
            random_openings=AGENT_OPENINGS if self.agent is not None and config.eval_deterministic else 0,
        )
        return Evaluation(
            [sum(each.returns(sides).values()) for each in judged],
            [each.game.length for each in judged],
            num_capped=sum(each.game.capped for each in judged),
            agents=[each.returns(sides) for each in judged],
            outcomes=[each.game.results[each.side] for each in judged],
            sides=[each.side for each in judged],
        )


def opponent_name(config: TrainConfig) -> str:
    """Return who plays the other seats in evaluations, with `auto` resolved."""
    if config.eval_against != "auto":
        return config.eval_against
    return RANDOM if config.opponents != SELF or config.best_by == "win_rate" else SELF


def evaluation_opponent(
    config: TrainConfig,
    spec: EnvSpec,
    factory: EnvFactory | None,
    run_dir: Path | None,
    trusted: bool,
) -> EvaluationOpponent | None:
    """Return who plays against the learner in evaluations; None if it plays with itself, or there is no game.

    The copy of an agent in `run_dir` takes precedence over the run that the config names, which may import its own
    modules if it is `trusted`. The caller has checked that a function that the config names may be imported.
    """
    if spec.game is None or (name := opponent_name(config)) == SELF:
        return None
    if len(sides_of(spec.game)) < 2:
        raise UserError(
            f"{SETTING} is {name}, but one policy plays all agents of '{config.env_id}'; use self"
        )
    greedy = config.eval_deterministic
    if name == RANDOM or is_function_name(name):
        return EvaluationOpponent(find_player(name, config, what=SETTING, deterministic=greedy))
    if run_dir is not None and (run_dir / FOLDER).is_dir():
        agent = load_agent(run_dir / FOLDER, trust_modules=trusted, probe=False)
        refuse_other_game(agent, config, SETTING)
    else:
        agent = opponent_agent(name, config, what=SETTING, trust_modules=trusted)
    player = agent_player(agent, name, deterministic=greedy)
    with evaluation_generators(config.seed):
        check_players(rules_of(config, factory, sides_of(spec.game)), [player])
    return EvaluationOpponent(player, agent)
