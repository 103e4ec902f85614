"""IPPO and MAPPO beside BenchMARL in the same games: `make games-peer`.

Same games, settings, seeds and number of steps. Every side's policy is evaluated here, by the same code, on the same
episodes. Writes `results/games_peer.json` after every run, and goes on where it was interrupted; then
`results/games_peer.md`. Settings are those that the MAPPO paper (arXiv:2103.01955) gives for these games, with shorter
rollouts, as the runs are shorter.

What differs: BenchMARL has an optimizer for the actor and one for the critic of each policy, ours one for both; so
gradients are not clipped on either side. The critic of our MAPPO reads the state of the game and the agent's own
observation, BenchMARL's the state alone.
"""

import argparse
import importlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.algorithms import ALGORITHMS
from rl_training.core.types import Array
from rl_training.lab.statistics import interval

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
Act = Callable[[Mapping[str, Array], bool, np.random.Generator], Mapping[str, Any]]
"""Returns actions by agent for observations by agent; the most probable ones, or sampled ones if the flag is set."""


@dataclass(frozen=True)
class Task:
    """A game, who shares a policy in it, and how long it is trained."""

    settings: dict[str, Any]
    policies: str
    agents: int
    game_steps: int
    """A multiple of num_steps * num_games."""
    team: int
    """Agents that share a policy; on both sides their rows are in the same minibatch."""
    algorithm: dict[str, Any]


TASKS = {
    "simple_speaker_listener_v4": Task(
        {"max_cycles": 25, "continuous_actions": False}, policies="each", agents=2, game_steps=80_000, team=1,
        algorithm={"update_epochs": 15, "num_minibatches": 1},
    ),
    "simple_spread_v3": Task(
        {"max_cycles": 25, "continuous_actions": False, "local_ratio": 0.5}, policies="shared", agents=3,
        game_steps=40_000, team=3, algorithm={"update_epochs": 10, "num_minibatches": 4},
    ),
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "num_games": 16, "num_steps": 50, "learning_rate": 7e-4, "gamma": 0.99, "gae_lambda": 0.95, "clip_coef": 0.2,
    "ent_coef": 0.01, "vf_coef": 1.0, "max_grad_norm": 1e6, "hidden_sizes": [64, 64], "normalize_advantage": True,
}  # fmt: skip
ADAM_EPS = 1e-5
ALGOS = {"ippo": "ppo", "mappo": "mappo"}
SIDES = ("ours", "benchmarl")
WRAPPER_STEPS = 4_000


def mean_returns(name: str, act: Act, episodes: int, *, sampled: bool) -> float:
    """Return the mean over agents and episodes of the sum of rewards; the seeds are the same for every policy."""
    game = importlib.import_module(f"mpe2.{name}").parallel_env(**TASKS[name].settings)
    rng, total = np.random.default_rng(0), 0.0
    for episode in range(episodes):
        seen, _ = game.reset(seed=10_000 + episode)
        while game.agents:
            seen, rewards, *_ = game.step(act(seen, sampled, rng))
            total += float(np.mean(list(rewards.values())))
    return total / episodes


def judged(name: str, act: Act, episodes: int) -> dict[str, float]:
    """Return the mean return with the most probable actions, and with sampled ones."""
    return {
        "return": mean_returns(name, act, episodes, sampled=False),
        "sampled_return": mean_returns(name, act, episodes, sampled=True),
    }


def random_actions(name: str) -> Act:
    """Return a policy that chooses uniformly."""
    game = importlib.import_module(f"mpe2.{name}").parallel_env(**TASKS[name].settings)
    return lambda seen, sampled, rng: {
        agent: int(rng.integers(int(game.action_space(agent).n))) for agent in seen
    }


def ours_settings(task: Task) -> dict[str, Any]:
    """Return the settings of our algorithms, whose minibatches count rows: a step of a game has one for each agent."""
    settings = SETTINGS | task.algorithm
    num_games, minibatches = settings.pop("num_games"), settings.pop("num_minibatches")
    settings["batch_size"] = num_games * settings["num_steps"] * task.team // minibatches
    settings["hidden_sizes"] = tuple(settings["hidden_sizes"])
    return settings


def ours(name: str, algo: str, seed: int, flags: argparse.Namespace) -> dict[str, float]:
    """Train our side; return CPU seconds per 1,000 agent steps and the returns."""
    task = TASKS[name]
    steps = (flags.game_steps or task.game_steps) * task.agents
    with tempfile.TemporaryDirectory() as folder:
        model = ALGORITHMS[ALGOS[algo]](
            f"pettingzoo://mpe2/{name}", env_kwargs=task.settings, seed=seed, output_dir=folder, num_threads=1,
            num_envs=SETTINGS["num_games"], policies=task.policies, agent_ids="off",
            eval_every_timesteps=0, num_eval_episodes=1, checkpoint_every_timesteps=0,
            log_every_timesteps=10**9, **ours_settings(task),
        )  # fmt: skip
        started = time.process_time()
        model.learn(steps, progress=False)
        seconds = time.process_time() - started
        found = judged(
            name,
            lambda seen, sampled, rng: model.predict(dict(seen), deterministic=not sampled)[0],
            flags.episodes,
        )
    return {"seconds_per_1000": 1e3 * seconds / steps, **found}


def benchmarl(
    name: str, algo: str, seed: int, flags: argparse.Namespace, *, wrapper: bool = False
) -> dict[str, float]:
    """Train BenchMARL's side in its own virtual environment; return the same."""
    task = TASKS[name]
    steps = WRAPPER_STEPS if wrapper else flags.game_steps or task.game_steps
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "policy.npz"
        command = [flags.benchmarl, str(HERE / "peer_runners" / "benchmarl_games.py"), "--algo", algo]
        command += ["--game", name, "--game-settings", json.dumps(task.settings), "--policy", str(file)]
        command += ["--frames", str(steps), "--seed", str(seed), *(["--wrapper"] if wrapper else [])]
        command += ["--settings", json.dumps(SETTINGS | task.algorithm | {"adam_eps": ADAM_EPS})]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        layers = dict(np.load(file))
    seconds = json.loads(done.stdout.splitlines()[-1])["seconds"]
    cost = {"seconds_per_1000": 1e3 * seconds / (steps * task.agents)}
    return cost if wrapper else {**cost, **judged(name, network_actions(layers), flags.episodes)}


def network_actions(layers: Mapping[str, Array]) -> Act:
    """Return the policy of tanh networks whose weights and biases are named agent/0, agent/1 and so on."""

    def act(seen: Mapping[str, Array], sampled: bool, rng: np.random.Generator) -> dict[str, int]:
        actions = {}
        for agent, obs in seen.items():
            own = [layers[f"{agent}/{i}"] for i in range(sum(key.startswith(f"{agent}/") for key in layers))]
            logits = obs
            for number in range(0, len(own), 2):
                logits = own[number] @ (np.tanh(logits) if number else logits) + own[number + 1]
            chances = np.exp(logits - logits.max())
            chosen = rng.choice(len(chances), p=chances / chances.sum()) if sampled else logits.argmax()
            actions[agent] = int(chosen)
        return actions

    return act


def bounds(values: Array) -> tuple[float, float]:
    """Return the 95% interval of a mean, by resampling seeds."""
    drawn = values[np.random.default_rng(0).integers(0, len(values), (10_000, len(values)))].mean(1)
    low, high = interval(drawn)
    return float(low), float(high)


def difference(one: Array, other: Array) -> tuple[float, float, float]:
    """Return the difference of the means of two sides, with its interval by resampling seeds on each side."""
    rng = np.random.default_rng(0)
    drawn = [values[rng.integers(0, len(values), (10_000, len(values)))].mean(1) for values in (one, other)]
    low, high = interval(drawn[0] - drawn[1])
    return float(one.mean() - other.mean()), float(low), float(high)


def shown(middle: float, low: float, high: float) -> str:
    """Return a mean with its interval."""
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


HEAD = """# IPPO and MAPPO beside BenchMARL 1.5.2

Mean return of an episode: the rewards of 25 steps (`max_cycles`), summed for each agent and then averaged over agents.
simple_spread has `local_ratio` 0.5. Actions are discrete. Every policy is evaluated by the same code on the same
{episodes} episodes. Means over seeds {seeds} with 95% intervals, by resampling seeds; MAPPO minus IPPO is paired by
seed.

Both sides: {settings}.
{own}
One step of the game is one step of each agent.
"""


def report(found: dict[str, dict[str, float]], *, episodes: int = 100) -> str:
    """Return the page of what was measured."""
    parts = [key.split("|") for key in found]
    seeds = sorted({int(part[3]) for part in parts if len(part) == 4 and part[2] in SIDES})
    settings = ", ".join(f"{key} {value}" for key, value in (SETTINGS | {"adam_eps": ADAM_EPS}).items())
    names = ", ".join(map(str, seeds))
    own = "\n".join(
        f"{name}: policies {task.policies}, "
        + ", ".join(f"{key} {value}" for key, value in task.algorithm.items())
        + "."
        for name, task in TASKS.items()
    )
    lines = [HEAD.format(settings=settings, own=own, seeds=names, episodes=episodes)]
    for which, title in (("return", "The most probable actions"), ("sampled_return", "Sampled actions")):
        lines += learned(found, which, title)
    return "\n".join([*lines, *costs(found)]) + "\n"


def returns_of(found: dict[str, dict[str, float]], keys: tuple[str, str], which: str) -> tuple[Array, Array]:
    """Return the returns of two kinds of runs, for the seeds that both have."""
    rows = [
        {int(name.split("|")[3]): row[which] for name, row in found.items() if name.startswith(f"{key}|")}
        for key in keys
    ]
    seeds = sorted(rows[0].keys() & rows[1].keys())
    return np.array([rows[0][seed] for seed in seeds]), np.array([rows[1][seed] for seed in seeds])


def learned(found: dict[str, dict[str, float]], which: str, title: str) -> list[str]:
    """Return the tables of one way to act; one seed alone has no interval, and no row."""
    lines = [
        f"## {title}",
        "",
        "| game | agent steps | algorithm | seeds | random | ours | BenchMARL | ours minus BenchMARL |",
        "|---|---|---|---|---|---|---|---|",
    ]
    gaps = ["| game | side | seeds | MAPPO minus IPPO |", "|---|---|---|---|"]
    for name, task in TASKS.items():
        for algo in ALGOS:
            one, other = returns_of(found, (f"{name}|{algo}|ours", f"{name}|{algo}|benchmarl"), which)
            if len(one) < 2:
                continue
            lines.append(
                f"| {name} | {task.game_steps * task.agents:,} | {algo.upper()} | {len(one)} "
                f"| {found[f'{name}|random'][which]:.2f} | {shown(one.mean(), *bounds(one))} "
                f"| {shown(other.mean(), *bounds(other))} | {shown(*difference(one, other))} |"
            )
        for side in SIDES:
            ippo, mappo = returns_of(found, (f"{name}|ippo|{side}", f"{name}|mappo|{side}"), which)
            if len(ippo) > 1:
                gap = mappo - ippo
                gaps.append(f"| {name} | {side} | {len(gap)} | {shown(gap.mean(), *bounds(gap))} |")
    return [*lines, "", *gaps, ""]


def costs(found: dict[str, dict[str, float]]) -> list[str]:
    """Return the table of CPU time."""
    lines = [
        "## CPU seconds per 1,000 agent steps",
        "",
        "Of one thread, in the runs above: medians over seeds, on a machine that did other things: rough figures. The",
        "last column is BenchMARL with games one by one in TorchRL's wrapper, as its own tasks have them; in the runs",
        "above it steps all games in one batch.",
        "",
        "| game | algorithm | ours | BenchMARL | BenchMARL, wrapper |",
        "|---|---|---|---|---|",
    ]
    for name in TASKS:
        for algo in ALGOS:
            spent = [
                [
                    row["seconds_per_1000"]
                    for key, row in found.items()
                    if key.startswith(f"{name}|{algo}|{side}|")
                ]
                for side in (*SIDES, "wrapper")
            ]
            if all(spent):
                cells = " | ".join(f"{np.median(values):.2f}" for values in spent)
                lines.append(f"| {name} | {algo.upper()} | {cells} |")
    return lines


def main() -> None:
    """Measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--game-steps", type=int, help="instead of the steps of each game; for trials")
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "games_peer.json")
    parser.add_argument("--benchmarl", default=str(ROOT / ".venv-benchmarl" / "bin" / "python"))
    flags = parser.parse_args()
    found: dict[str, Any] = json.loads(flags.results.read_text()) if flags.results.exists() else {}

    def measured(key: str, measure: Callable[[], dict[str, float]]) -> None:
        if key not in found:
            found[key] = measure()
            print(key, found[key], flush=True)
            flags.results.write_text(json.dumps(found, indent=1) + "\n")

    for name in flags.games:
        measured(f"{name}|random", lambda name=name: judged(name, random_actions(name), flags.episodes))
        for seed in flags.seeds:
            for algo in ALGOS:
                for side in flags.sides:
                    train, key = {"ours": ours, "benchmarl": benchmarl}[side], f"{name}|{algo}|{side}|{seed}"
                    measured(key, lambda t=train, n=name, a=algo, s=seed: t(n, a, s, flags))
    for name in flags.games if "benchmarl" in flags.sides else ():
        for algo in ALGOS:
            key = f"{name}|{algo}|wrapper|0"
            measured(key, lambda n=name, a=algo: benchmarl(n, a, 0, flags, wrapper=True))
    flags.results.with_suffix(".md").write_text(report(found, episodes=flags.episodes))


if __name__ == "__main__":
    main()
