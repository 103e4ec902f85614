"""`rl-training eval`: play episodes with a trained agent."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rl_training.cli.arguments import Option, parse
from rl_training.cli.env_flags import chosen_env
from rl_training.core.errors import printable
from rl_training.experiment.interrupts import closing_on_sigterm
from rl_training.experiment.loading import load_agent
from rl_training.experiment.video import record_video


@dataclass(frozen=True, kw_only=True)
class Eval:
    """Play episodes with a trained agent and print the returns."""

    run: Annotated[str, Option(positional=True, metavar="RUN")]
    """A run folder, a checkpoint folder, or last/best of a run."""
    num_episodes: int = 10
    """Episodes to play."""
    json: bool = False
    """Print the result as one JSON object."""
    record: Annotated[str | None, Option(metavar="DIR")] = None
    """Folder to write a video of one episode into; `rl-training record` writes a dataset."""
    stochastic: bool = False
    """Sample actions instead of taking the most likely one."""
    env_id: str | None = None
    """Environment to play in; by default the one the agent was trained in."""
    env_factory: str | None = None
    """Function that builds the environment to play in, as module:function."""
    trust_modules: bool = False
    """Import the modules that someone else's run names for algorithm, environment, wrappers, encoder and schedules."""


def run(argv: list[str]) -> int:
    """Parse the flags, evaluate and print."""
    flags = parse(Eval, argv, "rl-training eval")
    env = chosen_env(flags.env_id, flags.env_factory)
    agent = load_agent(flags.run, env=env, trust_modules=flags.trust_modules, probe=False)
    with closing_on_sigterm():
        summary = agent.evaluate(flags.num_episodes, deterministic=False if flags.stochastic else None)
        videos = record_video(agent, Path(flags.record)) if flags.record is not None else []
    if flags.json:
        print(json.dumps(summary | ({"videos": [str(path) for path in videos]} if videos else {})))
        return 0
    success = f", {summary['success_rate']:.0%} reached their goal" if "success_rate" in summary else ""
    print(
        f"{agent.config.algo} on {printable(agent.config.env_id)} after {agent.timesteps:,} steps: return "
        f"{summary['mean_reward']:.1f} ± {summary['std_reward']:.1f}, length {summary['mean_ep_length']:.1f} "
        f"({summary['num_episodes']} episodes{success})"
    )
    for name in (name for name in summary if name.startswith("info/")):
        print(f"{printable(name)}: {summary[name]:g}")
    for path in videos:
        print(f"video: {printable(path)}")
    return 0
