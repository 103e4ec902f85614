"""Kills training runs in environments of other packages, as `chaos.py` does in known ones.

`make chaos-foreign` writes `results/chaos_foreign.md`. `--scenarios 3 4` takes some of them, by number, and writes no
report. Finished scenarios are kept in `runs/chaos_foreign.json` until the report is written, so that a second call
goes on.

Environments of these packages that cannot be trained, or not resumed exactly, are named with what `check-env` says.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version

import chaos
import tyro
from chaos import Args, Finished, Scenario, Trial

from rl_training.experiment.files import write_text

PPO = ("ppo", "--num-steps", "64", "--batch-size", "64", "--num-envs", "2", "--update-epochs", "4")
RECURRENT = ("recurrent_ppo", *PPO[1:])
A2C = ("a2c", "--num-envs", "4")
REPLAY = (
    "--buffer-size",
    "2000",
    "--learning-starts",
    "200",
    "--batch-size",
    "32",
    "--hidden-sizes",
    "64",
    "64",
)
DQN = ("dqn", *REPLAY, "--num-envs", "2", "--train-freq", "4", "--target-update-every-timesteps", "250")
SAC = ("sac", *REPLAY, "--num-envs", "2", "--train-freq", "2")
TD3 = ("td3", *REPLAY, "--num-envs", "2", "--train-freq", "2")
ASYNC = ("--env-backend", "async")
PICTURES = ("--preprocessing", "image", "--image-size", "36", "--features-dim", "32")
FEW_EPISODES = ("--num-eval-episodes", "2")


def scenario(
    name: str, env_id: str, flags: tuple[str, ...], timesteps: int, kwargs: str | None = None
) -> Scenario:
    """Return a scenario that saves twelve times and evaluates three times."""
    given = () if kwargs is None else ("--env-kwargs", kwargs)
    flags = (*flags, *FEW_EPISODES, "--env-id", env_id, *given)
    return Scenario(name, flags, timesteps=timesteps, checkpoint_every=timesteps // 12)


STOCKS, FOREX = "gym_anytrading:stocks-v0", "gym_anytrading:forex-v0"
SHORT = ("--max-episode-steps", "150")
QUADX, ROCKET = "PyFlyt.gym_envs:PyFlyt/QuadX-Hover-v4", "PyFlyt.gym_envs:PyFlyt/Rocket-Landing-v4"
SCENARIOS = (
    scenario("FlappyBird", "flappy_bird_gymnasium:FlappyBird-v0", PPO, 12_000, "{use_lidar: false}"),
    scenario("FlappyBird, lidar, async", "flappy_bird_gymnasium:FlappyBird-v0", (*DQN, *ASYNC), 2_400),
    scenario(
        "Tetris, nested boards", "tetris_gymnasium.envs.tetris:tetris_gymnasium/Tetris", (*DQN, *SHORT), 3_600
    ),
    scenario("stocks, memory", STOCKS, (*RECURRENT, *SHORT, "--normalize-obs"), 6_000),
    scenario("forex, async", FOREX, (*A2C, *SHORT, *ASYNC, "--normalize-reward"), 24_000),
    scenario("PushT", "gym_pusht:gym_pusht/PushT-v0", SAC, 3_600),
    scenario(
        "PushT, async, normalised", "gym_pusht:gym_pusht/PushT-v0", (*PPO, *ASYNC, "--normalize-obs"), 6_000
    ),
    scenario("PandaReach, goals", "panda_gym:PandaReach-v3", SAC, 2_400),
    scenario("PandaPushDense, rebuilt", "panda_gym:PandaPushDense-v3", TD3, 1_800),
    scenario("SimpleGrid", "gym_simplegrid:SimpleGrid-8x8-v0", (*DQN, "--prioritized"), 6_000),
    scenario("QuadX-Hover", QUADX, (*PPO, *SHORT), 3_600),
    scenario("Rocket-Landing, 3-step", ROCKET, (*SAC, *SHORT, "--n-step", "3"), 2_400),
    scenario(
        "Meta-World reach", "metaworld:Meta-World/MT1", (*TD3, *SHORT), 2_400, "{env_name: reach-v3, seed: 7}"
    ),
    scenario("Crafter, memory, pictures", "chaos_foreign_envs:Crafter-v0", (*RECURRENT, *PICTURES), 1_800),
    scenario("Crafter, pictures, async", "chaos_foreign_envs:Crafter-v0", (*DQN, *PICTURES, *ASYNC), 1_800),
    scenario(
        "VizDoom, pictures and numbers",
        "vizdoom.gymnasium_wrapper:VizdoomBasic-v1",
        (*PPO, *SHORT, *PICTURES),
        2_400,
    ),
)
PACKAGES = {
    "flappy_bird_gymnasium": "flappy-bird-gymnasium",
    "tetris_gymnasium.envs.tetris": "tetris-gymnasium",
    "gym_anytrading": "gym-anytrading",
    "gym_pusht": "gym-pusht",
    "panda_gym": "panda-gym",
    "gym_simplegrid": "gym-simplegrid",
    "PyFlyt.gym_envs": "PyFlyt",
    "metaworld": "metaworld",
    "chaos_foreign_envs": "crafter",
    "vizdoom.gymnasium_wrapper": "vizdoom",
    "gymnasium_snake_game": "gymnasium-snake-game",
    "rware": "rware",
}
"""Module of an id -> the package that it comes from."""
NOT_KILLED = ("gymnasium_snake_game:Snake-v1", "rware:rware-tiny-1ag-v2")
"""Environments that are only checked, because they cannot be trained or resumed exactly."""


def main(args: Args) -> int:
    """Run the chaos, print and write what came of it."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    chosen = [SCENARIOS[i] for i in args.scenarios] or list(SCENARIOS)
    finished = Finished(chaos.ROOT / "runs" / "chaos_foreign.json", fresh=args.fresh)
    trials = chaos.torture_all(chosen, args.kills, args.seed, finished)
    text = report(trials)
    print(text)
    if not args.scenarios:
        write_text(chaos.ROOT / "results" / "chaos_foreign.md", text)
    finished.path.unlink(missing_ok=True)
    return 1 if any(trial.differences for trial in trials) else 0


def report(trials: list[Trial]) -> str:
    """Return the Markdown report."""
    kills: dict[str, int] = {}
    for trial in trials:
        kills[env_of(trial.scenario)] = kills.get(env_of(trial.scenario), 0) + len(trial.kills)
    environments = [f"| `{env_id}` | {packaged(env_id)} | {count} |" for env_id, count in kills.items()]
    not_killed = [f"| `{env_id}` | {packaged(env_id)} | {said_of(env_id)} |" for env_id in NOT_KILLED]
    return "\n".join(
        [
            "# Chaos in environments of other packages",
            "",
            f"Made by `make chaos-foreign`: {chaos.WHAT_IS_COMPARED}",
            "",
            *chaos.table(trials),
            f"{len(kills)} environments of {len({packaged(env_id) for env_id in kills})} packages:",
            "",
            "| environment | package | kills |",
            "|---|---|---|",
            *environments,
            "",
            "Crafter is built by [an adapter](../scripts/chaos_foreign_envs.py): as it is, it draws creatures in the "
            "order of their memory addresses, so its episodes are not a function of seed and actions.",
            "",
            "Not killed, because they cannot be trained or resumed exactly:",
            "",
            "| environment | package | what `check-env` says |",
            "|---|---|---|",
            *not_killed,
            "",
        ]
    )


def env_of(scenario: Scenario) -> str:
    """Return the id of a scenario's environment."""
    return scenario.flags[scenario.flags.index("--env-id") + 1]


def packaged(env_id: str) -> str:
    """Return the package of an environment, with its version."""
    name = PACKAGES[env_id.partition(":")[0]]
    return f"{name} {version(name)}"


def said_of(env_id: str) -> str:
    """Return the problems and the remarks on determinism of `check-env`."""
    command = [sys.executable, "-m", "rl_training.cli", "check-env", env_id]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return "; ".join(objections(printed)) or "nothing"


def objections(printed: str) -> Iterator[str]:
    """Yield the lines of `check-env` that tell why an environment cannot be resumed exactly."""
    for line in printed.splitlines():
        kind, _, said = line.partition(": ")
        if kind == "problem" or (kind == "remark" and "not deterministic" in said):
            yield said


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__, default=Args(kills=4 * len(SCENARIOS)))))
