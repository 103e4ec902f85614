"""Games in commands and in Python: from training to videos, and one clear error for what does not work."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_games

import rl_training
from rl_training import PPO
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints.format import read_checkpoint
from rl_training.experiment.start import evaluate_checkpoint
from rl_training.experiment.video import can_record

FOUR = "pettingzoo://classic/connect_four_v3"
SPREAD = "pettingzoo://mpe2/simple_spread_v3"
SMALL = ("--total-timesteps", 64, "--num-envs", 2, "--num-eval-episodes", 2, "--num-steps", 32, "--quiet")


def test_the_package_is_imported_without_pettingzoo() -> None:
    code = (
        "import sys, rl_training.envs.factory, rl_training.experiment.start, rl_training.cli.train\n"
        "assert not {'pettingzoo', 'mpe2'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("env", ["at_once", "turns"])
@pytest.mark.parametrize("policies", ["shared", "each"])
def test_a_game_of_a_function_lives_through_all_commands(env, policies, cli, tmp_path) -> None:
    by = ("--env-factory", f"tiny_games:{env}")
    assert cli("train", "ppo", *by, "--policies", policies, *SMALL, "--output-dir", tmp_path).code == 0
    (run,) = tmp_path.iterdir()
    assert cli("resume", run, *by, "--total-timesteps", 256, "--quiet").code == 0
    found = cli("eval", run, *by, "--num-episodes", 3, "--json")
    assert found.code == 0, found.err
    summary = json.loads(found.out)
    assert len(summary["returns"]) == 3
    assert summary["mean_reward/agent_0"] + summary["mean_reward/agent_1"] == pytest.approx(
        summary["mean_reward"]
    )
    assert "function" in cli("eval", run).sentence
    model = rl_training.load(run, env=getattr(tiny_games, env))
    assert model.evaluate(3)["returns"] == summary["returns"]


def test_resumed_games_give_the_same_bytes(cli, tmp_path) -> None:
    by = ("--env-factory", "tiny_games:turns", "--policies", "each")
    for name, steps in (("once", 256), ("twice", 128)):
        folder = tmp_path / name
        given = ("--total-timesteps", steps, *SMALL[2:], "--output-dir", folder)
        assert cli("train", "ppo", *by, *given).code == 0
    (once,), (twice,) = ((tmp_path / name).iterdir() for name in ("once", "twice"))
    assert cli("resume", twice, *by[:2], "--total-timesteps", 256, "--quiet").code == 0
    known, found = (
        {path.name: path.read_bytes() for path in (run / "checkpoints" / "step_256").glob("*.safetensors")}
        for run in (once, twice)
    )
    assert len(known) > 1
    assert known == found


def refused(cli: Any, tmp_path: Path, *arguments: Any, algo: str = "ppo") -> str:
    """Return the sentence of a training that is refused, and leaves nothing behind."""
    outcome = cli("train", algo, *arguments, "--total-timesteps", 64, "--output-dir", tmp_path / "runs")
    assert outcome.code == 2
    assert not (tmp_path / "runs").exists()
    sentence: str = outcome.sentence
    return sentence


BY_ID = [
    ("pettingzoo://classic/connect_for_v3", "did you mean 'classic/connect_four_v3'"),
    ("pettingzoo://clasic/connect_four_v3", "no package 'clasic'; did you mean 'classic'"),
    ("pettingzoo://mpe2/simple_spred_v3", "did you mean 'mpe2/simple_spread_v3'"),
    ("pettingzoo://mpe/simple_spread_v3", "no package 'mpe'; did you mean 'mpe2'"),
    (
        "pettingzoo://qwertyuiop/simple_spread_v3",
        "PettingZoo's families are classic, butterfly, sisl, atari, mpe2",
    ),
    ("pettingzoo://nonsense", "write pettingzoo://family/name"),
    ("pettingzoo://classic/../evil", "write pettingzoo://family/name"),
]


@pytest.mark.parametrize(("env_id", "said"), BY_ID)
def test_a_game_that_is_not_there_is_named(env_id, said, cli, tmp_path) -> None:
    assert said in refused(cli, tmp_path, "--env-id", env_id)


@pytest.mark.parametrize(
    ("missing", "env_id", "said"),
    [
        ("pettingzoo", FOUR, "needs PettingZoo; pip install 'rl-training[agents]'"),
        ("mpe2", SPREAD, "needs the package mpe2; pip install mpe2, or pip install 'rl-training[agents]'"),
        ("chess", "pettingzoo://classic/chess_v6", "pip install 'pettingzoo[classic]'"),
    ],
)
def test_a_package_that_is_missing_is_named(missing, env_id, said, cli, tmp_path, monkeypatch) -> None:
    for module in [name for name in sys.modules if name.startswith("pettingzoo.classic.chess")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    assert said in refused(cli, tmp_path, "--env-id", env_id)


GIVEN = {
    "a wrapper of Gymnasium": (
        ("--env-wrappers", "gymnasium.wrappers:FlattenObservation"),
        "is for environments with a single agent",
    ),
    "native": (("--env-backend", "native"), "env_backend is 'native', but"),
    "envpool": (("--env-backend", "envpool"), "env_backend is 'envpool', but"),
    "atari": (("--preprocessing", "atari"), "preprocessing 'atari' is for single-player games"),
    "an argument": (("--env-kwargs", "{foo: 1}"), "takes no argument 'foo'"),
    "an agent too little": (("--policies", "{a: [player_0]}"), "no policy to player_1"),
    "an unknown agent": (
        ("--policies", "{a: [player_0, player_9], b: [player_1]}"),
        "did you mean 'player_1'",
    ),
    "an agent twice": (
        ("--policies", "{a: [player_0, player_1], b: [player_1]}"),
        "'player_1' is listed twice",
    ),
    "a typing mistake": (("--policies", "sharde"), "did you mean 'shared'"),
    "processes": (("--engine", "process"), "engine is process, but games"),
    "groups": (("--env-groups", "2"), "env_groups is 2, but games"),
    "lag": (("--lag", "1"), "lag is 1, but games"),
    "shards": (("--learner-shards", "2"), "learner_shards is 2, but games"),
}


@pytest.mark.parametrize("case", GIVEN)
def test_settings_that_games_do_not_take(case, cli, tmp_path) -> None:
    arguments, said = GIVEN[case]
    assert said in refused(cli, tmp_path, "--env-id", FOUR, *arguments)


FUNCTIONS = [
    ("ppo", "always_the_same", (), "returned the same environment twice"),
    ("ppo", "nothing", (), "it must be a gymnasium.Env"),
    ("ppo", "missing", (), "does not exist"),
    ("sac", "continuous", (), "which sac does not support"),
    ("td3", "continuous", (), "which td3 does not support"),
    ("dqn", "continuous", (), "dqn needs discrete actions"),
    ("ppo", "continuous", ("--use-action-masks", "on"), "provides no masks"),
    ("ppo", "continuous", ("--preprocessing", "image"), "have no image"),
]


@pytest.mark.parametrize(("algo", "function", "given", "said"), FUNCTIONS)
def test_functions_and_algorithms_that_do_not_fit(algo, function, given, said, cli, tmp_path) -> None:
    assert said in refused(cli, tmp_path, "--env-factory", f"tiny_games:{function}", *given, algo=algo)


def test_settings_of_games_are_refused_for_a_single_agent(cli, tmp_path) -> None:
    said = refused(cli, tmp_path, "--env-id", "CartPole-v1", "--policies", "each")
    assert "has a single agent" in said


def test_a_game_itself_is_no_function() -> None:
    with pytest.raises(UserError, match="a function that builds a new one each time"):
        PPO(TrainConfig(algo="ppo", env_id="Plot"), env=tiny_games.turns())


MODULE = """
from tiny_games import at_once as parallel_env
"""


@pytest.fixture
def strangers(tmp_path, tiny, monkeypatch) -> Path:
    """A run in a game of a package that PettingZoo does not know."""
    package = tmp_path / "modules" / "somebodys_games"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "plot_v0.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    run: Path = PPO(tiny(env_id="pettingzoo://somebodys_games/plot_v0")).learn().agent.path.parents[1]
    forget(monkeypatch)
    return run


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("somebodys_games")]:
        monkeypatch.delitem(sys.modules, name)


def test_a_strangers_game_is_not_imported(strangers, tmp_path, monkeypatch) -> None:
    assert evaluate_checkpoint(strangers, 2)["num_episodes"] == 2, "it is ours"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    for _ in range(2):  # imported or not
        with pytest.raises(
            UserError, match=r"module 'somebodys_games'.*--env-id pettingzoo:.*--trust-modules"
        ):
            evaluate_checkpoint(strangers, 2)
        forget(monkeypatch)
    assert rl_training.load(strangers).agent.spec.game.agents == ("agent_0", "agent_1"), "spaces need no game"
    assert evaluate_checkpoint(strangers, 2, trust_modules=True)["num_episodes"] == 2


def test_a_strangers_game_of_a_known_family_is_fine(tiny, tmp_path, monkeypatch) -> None:
    run = PPO(tiny(env_id=SPREAD)).learn().agent.path
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    assert read_checkpoint(run).config.env_id == SPREAD
    assert evaluate_checkpoint(run, 2)["num_episodes"] == 2


# videos


def frames_of(path: Path) -> int:
    import imageio_ffmpeg

    count: int = imageio_ffmpeg.count_frames_and_secs(str(path))[0]
    return count


@pytest.mark.parametrize("env", ["at_once", "turns"])
@pytest.mark.parametrize("policies", ["shared", "each"])
@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo"])
def test_a_video_shows_the_first_game_of_the_evaluation(env, policies, algo, tiny, cli, tmp_path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    model = rl_training.algorithms.ALGORITHMS[algo](
        tiny(algo, policies=policies), env=getattr(tiny_games, env)
    )
    model.save(tmp_path / "agent")
    found = cli(
        "eval", tmp_path / "agent", "--env-factory", f"tiny_games:{env}", "--num-episodes", 1, "--json",
        "--record", tmp_path / "videos",
    )  # fmt: skip
    assert found.code == 0, found.err
    summary = json.loads(found.out)
    (video,) = (Path(path) for path in summary["videos"])
    assert video.name == f"episode_0_return_{summary['returns'][0]:.0f}.mp4"
    assert frames_of(video) == 1 + 6, "one before the first move, and one after each"


@pytest.mark.parametrize("env_id", [FOUR, SPREAD])
def test_a_video_of_pettingzoo_needs_no_screen(env_id, tiny, cli, tmp_path, monkeypatch) -> None:
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.delenv("DISPLAY", raising=False)
    model = PPO(tiny(env_id=env_id))
    assert can_record(model.agent.config)
    model.save(tmp_path / "agent")
    found = cli("eval", tmp_path / "agent", "--num-episodes", 1, "--json", "--record", tmp_path / "videos")
    assert found.code == 0
    summary = json.loads(found.out)
    assert frames_of(Path(summary["videos"][0])) == 1 + summary["lengths"][0]


def test_which_games_can_be_recorded(monkeypatch) -> None:
    pytest.importorskip("imageio_ffmpeg")
    config = TrainConfig(algo="ppo", env_id=FOUR)
    assert can_record(config)
    assert not can_record(config.with_overrides(env_id="pettingzoo://somebodys_games/plot_v0"))
    monkeypatch.setitem(sys.modules, "pygame", None)
    assert not can_record(config)
