"""`rl-training eval`: play episodes with a trained agent."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from rl_training.algorithms.fitted_evaluation import FitSettings
from rl_training.cli.arguments import Option, parse
from rl_training.cli.env_flags import chosen_env
from rl_training.cli.plan import ProgressLine
from rl_training.core.errors import UserError, printable
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.dataset_evaluation import DatasetEvaluation, evaluate_on_dataset
from rl_training.experiment.games.agent_matches import DEFAULT_GAMES, evaluate_against
from rl_training.experiment.games.judging import ALL, outcome_text
from rl_training.experiment.interrupts import closing_on_sigterm
from rl_training.experiment.loading import load_agent
from rl_training.experiment.video import record_video


@dataclass(frozen=True, kw_only=True)
class Eval:
    """Play episodes with a trained agent and print the returns.

    rl-training eval RUN --on-dataset DIR estimates the return from recorded episodes instead, without an environment.
    rl-training eval RUN --against random plays games against another player, and counts those won, drawn and lost.
    """

    run: Annotated[str, Option(positional=True, metavar="RUN")]
    """A run folder, a checkpoint folder, or last/best of a run."""
    num_episodes: int = 10
    """Episodes to play."""
    json: bool = False
    """Print the result as one JSON object."""
    record: Annotated[str | None, Option(metavar="DIR")] = None
    """Folder to write a video of one episode into; `rl-training record` writes a dataset."""
    stochastic: Annotated[bool, Option(aliases=("--sampled",))] = False
    """Sample actions instead of taking the most likely one."""
    env_id: str | None = None
    """Environment to play in; by default the one the agent was trained in."""
    env_factory: str | None = None
    """Function that builds the environment to play in, as module:function."""
    trust_modules: bool = False
    """Import the modules that someone else's run names for algorithm, environment, wrappers, encoder and schedules."""
    against: Annotated[str | None, Option(metavar="PLAYER")] = None
    """Who plays the other seats of a game: random; self; another run or saved agent; or module:function, which maps an
    observation and a mask to an action."""
    games: int = DEFAULT_GAMES
    """against: games to play."""
    seats: Annotated[str, Option(metavar="SEAT")] = ALL
    """against: seats that the agent takes: all, in turn, or the name of an agent of the game; where several policies
    play, the name of a policy."""
    random_openings: int = 0
    """against: number of random moves at the start of each game. Two players that never sample play only one game from
    each seat without them."""
    on_dataset: Annotated[str | None, Option(metavar="DATASET")] = None
    """Dataset from which to estimate the discounted return, by fitted Q evaluation; no environment is needed."""
    num_updates: int = FitSettings.num_updates
    """on-dataset: updates of the fit."""
    refits: int = 0
    """on-dataset: number of fits to resampled episodes, such as 10, that give the interval; 0 resamples start states
    of one fit only, which is faster and ignores the error of the fit."""
    gamma: float | None = None
    """on-dataset: discount factor; by default the agent's, or 0.99 if it has none."""
    seed: int = 0
    """on-dataset: seed of the fit."""


def run(argv: list[str]) -> int:
    """Parse the flags, evaluate and print."""
    flags = parse(Eval, argv, "rl-training eval")
    env = chosen_env(flags.env_id, flags.env_factory)
    if flags.on_dataset is not None:
        return _on_dataset(flags, flags.on_dataset)
    _refuse_flags_of_fits(flags)
    if flags.against is not None:
        return _against(flags, flags.against, env)
    for name in _given(flags, OF_GAMES):
        raise UserError(f"{name} is given, but not --against; leave it out, or name a player")
    agent = load_agent(flags.run, env=env, trust_modules=flags.trust_modules, probe=False)
    with closing_on_sigterm():
        summary = agent.evaluate(flags.num_episodes, deterministic=False if flags.stochastic else None)
        videos = record_video(agent, Path(flags.record)) if flags.record is not None else []
    if flags.json:
        print(json.dumps(summary | ({"videos": [str(path) for path in videos]} if videos else {})))
        return 0
    success = f", {summary['success_rate']:.0%} reached their goal" if "success_rate" in summary else ""
    print(
        f"{agent.config.algo} on {printable(agent.config.env_id)} after {agent.timesteps:,} {agent.unit}: return "
        f"{summary['mean_reward']:.1f} ± {summary['std_reward']:.1f}, length {summary['mean_ep_length']:.1f} "
        f"({summary['num_episodes']} episodes{success})"
    )
    for name in (name for name in summary if name.startswith("info/")):
        print(f"{printable(name)}: {summary[name]:g}")
    for path in videos:
        print(f"video: {printable(path)}")
    return 0


OF_FITS = ("num_updates", "refits", "gamma", "seed")
OF_GAMES = ("games", "seats", "random_openings")
OF_EPISODES = ("num_episodes", "record", "env_id", "env_factory", "against", *OF_GAMES)


def _given(flags: Eval, names: Sequence[str]) -> list[str]:
    usual = {item.name: item.default for item in fields(Eval)}
    return [f"--{name.replace('_', '-')}" for name in names if getattr(flags, name) != usual[name]]


def _against(flags: Eval, against: str, env: EnvFactory | str | None) -> int:
    """Play games against another player, and print how they went."""
    for name in _given(flags, ("num_episodes", "record")):
        remedy = "use --games" if name == "--num-episodes" else "leave one of them out"
        raise UserError(f"{name} is given, but --against plays games; {remedy}")
    agent = load_agent(flags.run, env=env, trust_modules=flags.trust_modules, probe=False)
    with closing_on_sigterm():
        found = evaluate_against(
            agent,
            against,
            games=flags.games,
            seats=flags.seats,
            random_openings=flags.random_openings,
            deterministic=False if flags.stochastic else None,
            env=env,
            trust_modules=flags.trust_modules,
        )
    if flags.json:
        print(json.dumps(found))
        return 0
    choice = "most likely actions" if found["deterministic"] else "sampled actions"
    opened = f", {flags.random_openings} random opening moves" if flags.random_openings else ""
    print(
        printable(
            f"{agent.config.algo} on {agent.config.env_id} after {agent.timesteps:,} {agent.unit} against "
            f"{found['against']}, {found['num_games']:,} games, {choice}{opened}"
        )
    )
    for seat, own in found["seats"].items():
        told = ", ".join(f"{name} {value:.2f}" for name, value in own["returns"].items())
        print(printable(f"  as {seat}: {outcome_text(own)}; mean returns: {told}"))
    print(f"  in total: {outcome_text(found)}")
    return 0


def _refuse_flags_of_fits(flags: Eval) -> None:
    for name in _given(flags, OF_FITS):
        raise UserError(f"{name} is given, but not --on-dataset; leave it out")


def _on_dataset(flags: Eval, dataset: str) -> int:
    """Estimate the return from a dataset, and print it."""
    for name in _given(flags, OF_EPISODES):
        raise UserError(f"{name} is given, but --on-dataset plays no episodes; leave one of them out")
    agent = load_agent(flags.run, trust_modules=flags.trust_modules, probe=False)
    line = ProgressLine("fitting")
    try:
        with closing_on_sigterm():
            found = evaluate_on_dataset(
                agent,
                dataset,
                num_updates=flags.num_updates,
                refits=flags.refits,
                gamma=flags.gamma,
                deterministic=False if flags.stochastic else None,
                seed=flags.seed,
                progress=lambda done, total: line.show(f"{done:,} of {total:,} updates"),
            )
    finally:
        line.clear()
    if flags.json:
        print(json.dumps(found.to_dict()))
    else:
        _print_estimate(agent.config.algo, found)
    return 0


def _print_estimate(algo: str, found: DatasetEvaluation) -> None:
    resampled = f"{found.num_refits} refits" if found.num_refits else "start states only, not the fit"
    print(
        printable(
            f"{algo} on dataset {found.dataset}, {found.num_episodes:,} episodes, gamma {found.gamma:g}"
        )
    )
    print(
        f"  estimated return of the agent     {found.estimate:,.2f}   95%: {found.low:,.2f} to {found.high:,.2f} "
        f"({resampled})"
    )
    print(
        f"  recorded return of the behaviour  {found.behaviour:,.2f}   95%: {found.behaviour_low:,.2f} to "
        f"{found.behaviour_high:,.2f}"
    )
    if found.agreement == found.agreement:  # not nan
        print(f"  recorded actions that are also the agent's: {found.agreement:.0%}")
    else:
        print(
            f"  mean distance of the agent's actions to the recorded ones: {found.distance:.2f}, in [-1, 1]"
        )
    print(
        "Returns are discounted. An estimate can be far off where the agent leaves the data: see docs/offline.md."
    )
