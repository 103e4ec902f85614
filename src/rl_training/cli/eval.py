"""`rl-training eval`: play episodes with a trained agent."""

import json as json_format
from pathlib import Path
from typing import Annotated

import tyro

from rl_training.experiment.agent import load_agent, record_video


def run(argv: list[str]) -> int:
    """Parse the flags and evaluate."""
    tyro.cli(evaluate, args=argv, prog="rl-training eval")
    return 0


def evaluate(
    run: Annotated[str, tyro.conf.Positional],
    num_episodes: int = 10,
    json: bool = False,
    record: str | None = None,
    stochastic: bool = False,
) -> None:
    """Play episodes with a trained agent and print the returns.

    Args:
        run: A run folder, a checkpoint folder, or last/best of a run.
        num_episodes: Episodes to play.
        json: Print the result as one JSON object.
        record: Folder to write a video of one episode into.
        stochastic: Sample actions instead of taking the most likely one.
    """
    agent = load_agent(run)
    summary = agent.evaluate(num_episodes, deterministic=False if stochastic else None)
    videos = record_video(agent, Path(record)) if record is not None else []
    if json:
        print(json_format.dumps(summary | ({"videos": [str(path) for path in videos]} if videos else {})))
        return
    print(
        f"{agent.config.algo} on {agent.config.env_id} after {agent.timesteps:,} steps: return "
        f"{summary['mean_reward']:.1f} ± {summary['std_reward']:.1f}, length {summary['mean_ep_length']:.1f} "
        f"({summary['num_episodes']} episodes)"
    )
    for path in videos:
        print(f"video: {path}")
