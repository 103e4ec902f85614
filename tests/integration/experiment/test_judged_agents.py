"""Agents judged by games: `evaluate(against=...)`, `eval --against`, and `eval_against` during training."""

import json
import re
import shutil

import numpy as np
import pytest

import rl_training
from rl_training import PPO
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, UserError
from rl_training.experiment.checkpoints.trust import imports_nothing
from rl_training.experiment.games import evaluation
from rl_training.experiment.games.judging import judge, rules_of
from rl_training.experiment.games.matches import Fixture, play_games
from rl_training.experiment.games.opponents import agent_player
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from support.callbacks import StopAtCollect
from support.games import JointGame, Plot, Role, TurnGame

boards = pytest.importorskip("support.boards")
COUNTS = ("wins", "draws", "losses", "num_games")


def settings(tmp_path, algo="ppo", **changes):
    from support.configs import SETTINGS

    usual = {
        "env_id": "nim",
        "seed": 1,
        "output_dir": str(tmp_path / "runs"),
        "total_timesteps": 64,
        "num_envs": 2,
        "eval_every_timesteps": 32,
        "num_eval_episodes": 6,
        "checkpoint_every_timesteps": 0,
        "log_every_timesteps": 32,
        "hidden_sizes": (8,),
    }
    env_id = changes.pop("env_id", usual.pop("env_id"))
    config = TrainConfig(algo=algo, env_id=env_id)
    return config.with_overrides(**usual | SETTINGS[algo] | changes)


@pytest.fixture
def trained(tmp_path):
    """Run folders of tiny agents."""

    def build(factory=boards.nim, algo="ppo", **changes):
        config = settings(tmp_path, algo, env_id=factory.__name__, **changes)
        return train(config, factory=factory).run_dir

    return build


def test_evaluate_against_everything(trained):
    model = PPO.load(trained(), env=boards.nim)
    for against in ("random", "self", "support.boards:perfect_nim", boards.coin_nim, model):
        found = model.evaluate(against=against, games=20)
        assert found["num_games"] == found["num_episodes"] == 20
        assert sum(found[name] for name in ("wins", "draws", "losses")) == 20
        assert set(found["seats"]) == {"first", "second"}
        for seat, own in found["seats"].items():
            assert own["num_games"] == 10
            # a game is won or lost by one point
            assert own["returns"][seat] == own["mean_reward"] == (own["wins"] - own["losses"]) / 10
        assert found["wins"] == sum(own["wins"] for own in found["seats"].values())
    assert found["against"].startswith("checkpoint")
    assert "step_64" in found["against"]
    one = model.evaluate(against="random", games=20, seats="second")
    assert set(one["seats"]) == {"second"}
    assert one["num_games"] == 20


def test_games_against_itself_are_the_evaluators_games(trained):
    """The same policy, seeds and starts: what is paid is what an ordinary evaluation reports."""
    for algo in ("ppo", "recurrent_ppo"):
        model = rl_training.load(trained(algo=algo), env=boards.nim_of_seven)
        plain = model.evaluate(num_episodes=4)
        judged = model.evaluate(against="self", games=4)
        assert judged["mean_ep_length"] == plain["mean_ep_length"]
        assert judged["seats"]["first"]["returns"]["first"] == plain["mean_reward/first"]


@pytest.mark.parametrize("kind", [TurnGame, JointGame])
@pytest.mark.parametrize("masks", ["", "info"])
@pytest.mark.parametrize("limit", [None, 2])
def test_a_game_is_that_of_an_evaluation(trained, kind, masks, limit):
    """It begins as its seed says, although the game was asked for its masks; a limit pays what is owed."""
    plot = Plot((Role(masks=masks), Role(masks=masks)), order=(0, 1))

    def plotted(**kwargs):
        return kind(plot)

    model = PPO.load(trained(plotted, max_episode_steps=limit), env=plotted)
    plain = model.evaluate(num_episodes=1)
    judged = model.evaluate(against="self", games=1)
    for agent, paid in judged["seats"]["agent_0"]["returns"].items():
        assert plain[f"mean_reward/{agent}"] == paid
    assert plain["mean_ep_length"] == judged["mean_ep_length"]


def test_a_policy_without_masks_may_lose_by_a_forbidden_move(tmp_path, caplog):
    """The game then ends at once, as in training."""
    pytest.importorskip("pygame")
    config = settings(tmp_path, env_id="pettingzoo://classic/tictactoe_v3", use_action_masks="off")
    model = PPO.load(train(config).run_dir)
    caplog.clear()
    found = model.evaluate(against="random", games=20)
    assert "Illegal move made" in caplog.text
    assert found["losses"] > 0
    assert found["num_games"] == 20


def test_the_console_shows_games_won(tmp_path, cli):
    path = tmp_path / "config.yaml"
    path.write_text(settings(tmp_path, eval_against="support.boards:coin_nim").to_yaml(), encoding="utf-8")
    done = cli("train", "--config", path, "--env-factory", "support.boards:nim")
    assert done.code == 0, done.err
    assert "of the games won" in done.out
    assert re.search(r"evaluation \S+ ± \S+  won \d+%, drawn 0%", done.out)


def test_memory_is_that_of_training(trained):
    """An agent with memory watches while it waits, and its memory begins with its first own action."""
    model = rl_training.load(trained(algo="recurrent_ppo"), env=boards.nim)
    agent = model.agent
    player = agent_player(agent, "agent", deterministic=True)
    steps, memories = [], []

    def watch(step):
        steps.append(step)
        memories.append(dict(player._tables[0].memory))

    rules = rules_of(agent.config, boards.nim, {"first": ("first",), "second": ("second",)})
    rules.watch = watch
    play_games(
        rules, [Fixture({"first": player, "second": player}, 5)], {id(player): np.random.default_rng(0)}
    )
    assert len(steps) >= 3
    game, state = boards.nim(), None
    game.reset(seed=5)
    for number, (step, memory) in enumerate(zip(steps, memories, strict=True)):
        seen = {name: game.observe(name) for name in game.possible_agents}
        mover = game.agent_selection
        action, state = model.predict(seen, state)
        assert action[mover] == step.actions[mover]
        if number == 0:  # the second player has not acted yet
            assert set(memory) == {"first"}
            state = tuple(np.stack([part[0], np.zeros_like(part[1])]) for part in state)
        for row, name in enumerate(memory):
            for ours, theirs in zip(memory[name], state, strict=True):
                np.testing.assert_allclose(ours[0], theirs[row], rtol=1e-5)
        game.step(action[mover])


def test_policies_of_their_own_take_their_own_seats(trained):
    model = PPO.load(trained(boards.bids, policies={"pair": ["a", "c"], "lone": ["b"]}), env=boards.bids)
    found = model.evaluate(against=boards.highest_bid, games=10)
    assert set(found["seats"]) == {"pair", "lone"}
    assert found["seats"]["pair"]["returns"]["b"] == 4.0
    assert found["seats"]["lone"]["returns"]["a"] == found["seats"]["lone"]["returns"]["c"] == 4.0
    with pytest.raises(UserError, match="seats is 'a'; use all, or one of pair, lone"):
        model.evaluate(against="random", seats="a")


def test_sampled_actions_and_openings(trained):
    model = PPO.load(trained(), env=boards.nim_of_seven)
    assert model.evaluate(against="self", games=20)["seats"]["first"]["win_rate"] in (0.0, 1.0)
    sampled = model.evaluate(against="self", games=40, deterministic=False)
    assert 0.0 < sampled["seats"]["first"]["win_rate"] < 1.0
    opened = model.evaluate(against="self", games=40, random_openings=2)
    assert 0.0 < opened["seats"]["first"]["win_rate"] < 1.0
    assert opened["random_openings"] == 2


def test_the_command(trained, cli):
    run_dir = trained()
    game = ("--env-factory", "support.boards:nim")
    done = cli("eval", run_dir, *game, "--against", "support.boards:coin_nim", "--games", 10, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["against"] == "support.boards:coin_nim"
    assert found["num_games"] == 10
    model = PPO.load(run_dir, env=boards.nim)
    assert found == model.evaluate(against="support.boards:coin_nim", games=10)
    shown = cli(
        "eval", run_dir, *game, "--against", run_dir, "--games", 6, "--random-openings", 1, "--sampled"
    )
    assert shown.code == 0, shown.err
    assert "6 games, sampled actions, 1 random opening moves" in shown.out
    assert "as first: " in shown.out
    assert "in total: " in shown.out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--against", "nowhere"], "against 'nowhere' is not a player (nowhere does not exist;"),
        (["--against", "nowhere:f"], "against 'nowhere:f' cannot be imported"),
        (["--against", "support.boards:perfect_nin"], "did you mean 'perfect_nim'?"),
        (["--against", "support.boards:NIM_OF_THREE"], "does not exist"),
        (["--against", "random", "--seats", "third"], "seats is 'third'; use all, or one of first, second"),
        (["--against", "random", "--games", "0"], "games is 0; use 1 or more"),
        (["--against", "random", "--random-openings", "-1"], "random_openings is -1; use 0 or more"),
        (
            ["--against", "random", "--num-episodes", "5"],
            "--num-episodes is given, but --against plays games",
        ),
        (["--games", "5"], "--games is given, but not --against"),
        (["--seats", "first"], "--seats is given, but not --against"),
    ],
)
def test_bad_input(trained, cli, flags, sentence):
    done = cli("eval", trained(), "--env-factory", "support.boards:nim", *flags)
    assert done.code == 2
    assert sentence in done.sentence


def test_runs_of_another_game_are_refused(trained, cli, tiny):
    nim, bids = trained(), trained(boards.bids)
    done = cli("eval", nim, "--env-factory", "support.boards:nim", "--against", bids)
    assert done.code == 2
    assert "was trained in another game: its env_id is 'bids', and here it is 'nim'" in done.sentence
    alone = train(tiny()).run_dir
    done = cli("eval", nim, "--env-factory", "support.boards:nim", "--against", alone)
    assert "which has a single agent" in done.sentence
    done = cli("eval", alone, "--against", "random")
    assert "which has a single agent" in done.sentence


def test_a_run_with_other_spaces_is_refused(trained, tmp_path):
    class Wide(boards.Nim):
        def observation_space(self, agent):
            from gymnasium import spaces

            found = super().observation_space(agent)
            return spaces.Dict(
                observation=spaces.Box(0, 9, (2,), np.float32), action_mask=found["action_mask"]
            )

        def observe(self, agent):
            seen = super().observe(agent)
            return seen | {"observation": np.repeat(seen["observation"], 2)}

    def wide(**kwargs):
        return Wide(**kwargs)

    other = train(settings(tmp_path), factory=wide).run_dir  # the same id
    model = PPO.load(trained(), env=boards.nim)
    with pytest.raises(UserError, match=r"was trained with observation_space .*2.* but the game now has"):
        model.evaluate(against=other, games=2)


# --- during training ---


def test_evaluations_report_games(tmp_path, rows):
    config = settings(tmp_path, eval_against="support.boards:perfect_nim")
    result = train(config, factory=boards.nim)
    found = rows(result.run_dir / "evaluations.jsonl")
    assert len(found) == 2
    for row in found:
        assert row["win_rate"] + row["draw_rate"] + row["loss_rate"] == pytest.approx(1.0)
        assert row["score"] == row["win_rate"] + row["draw_rate"] / 2
        assert row["mean_reward"] == pytest.approx(row["win_rate"] - row["loss_rate"])
        assert {"win_rate/first", "win_rate/second"} <= set(row)
        assert row["num_episodes"] == 6
    columns = (result.run_dir / "metrics.csv").read_text(encoding="utf-8").splitlines()[0].split(",")
    assert {"eval/win_rate", "eval/draw_rate", "eval/loss_rate", "eval/score", "eval/win_rate/first"} <= set(
        columns
    )
    # the same games as afterwards
    model = PPO.load(result.run_dir, env=boards.nim)
    again = model.evaluate(against="support.boards:perfect_nim", games=6)
    assert {name: again[name] for name in ("win_rate", "loss_rate", "mean_reward")} == {
        name: found[-1][name] for name in ("win_rate", "loss_rate", "mean_reward")
    }


@pytest.mark.parametrize(
    ("changes", "plays"),
    [
        ({}, False),
        ({"eval_against": "self"}, False),
        ({"eval_against": "random"}, True),
        ({"best_by": "win_rate"}, True),
    ],
)
def test_who_plays_by_default(tmp_path, rows, changes, plays):
    run_dir = train(settings(tmp_path, **changes), factory=boards.nim).run_dir
    assert all(("win_rate" in row) == plays for row in rows(run_dir / "evaluations.jsonl"))


def test_the_best_checkpoint_is_that_with_the_best_score(tmp_path, monkeypatch, read_pointer):
    """The mean return of the second evaluation is higher, but the third wins more."""
    from rl_training.core.types import Evaluation
    from rl_training.experiment.games.evaluation import EvaluationOpponent

    told = iter(
        [
            ([0.0, 0.0], ["loss", "loss"]),
            ([9.0, 9.0], ["win", "loss"]),
            ([1.0, 1.0], ["win", "draw"]),
            ([1.0, 1.0], ["draw", "win"]),
        ]
    )
    monkeypatch.setattr(
        EvaluationOpponent,
        "evaluate",
        lambda *_: (lambda seen: Evaluation(seen[0], [1, 1], outcomes=seen[1], sides=["first"] * 2))(
            next(told)
        ),
    )
    config = settings(tmp_path, best_by="win_rate", total_timesteps=128)
    run_dir = train(config, factory=boards.nim).run_dir
    assert read_pointer(run_dir, "best").name == "step_96"


def test_a_paused_run_goes_on_with_the_same_numbers(tmp_path, trained):
    opponent = trained()
    config = settings(tmp_path, eval_against=str(opponent), best_by="win_rate", total_timesteps=128)
    whole = train(config, factory=boards.nim).run_dir
    paused = train(config, factory=boards.nim, callbacks=[StopAtCollect(64)]).run_dir
    shutil.rmtree(opponent)  # the run has a copy
    resume(paused, factory=boards.nim)
    assert (whole / "evaluations.jsonl").read_bytes() == (paused / "evaluations.jsonl").read_bytes()
    assert len((whole / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()) == 4
    assert (paused / "eval_against" / "manifest.json").is_file()


@pytest.mark.parametrize(
    ("against", "deterministic", "openings"),
    [("run", True, 2), ("run", False, 0), ("random", True, 0), ("support.boards:perfect_nim", True, 0)],
)
def test_games_against_an_agent_begin_with_random_moves(
    tmp_path, trained, monkeypatch, against, deterministic, openings
):
    """Otherwise all games of an evaluation were the same two."""
    asked = []

    def watched(*arguments, **settings):
        asked.append(settings["random_openings"])
        return judge(*arguments, **settings)

    monkeypatch.setattr(evaluation, "judge", watched)
    opponent = str(trained()) if against == "run" else against
    train(settings(tmp_path, eval_against=opponent, eval_deterministic=deterministic), factory=boards.nim)
    assert asked == [openings] * 2


def test_an_opponent_that_cannot_be_copied_leaves_no_folder(tmp_path, trained, monkeypatch):
    opponent = trained()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rl_training.experiment.agent.write_checkpoint", full)
    with pytest.raises(UserError, match="No space left"):
        train(
            settings(tmp_path, eval_against=str(opponent), output_dir=str(tmp_path / "new")),
            factory=boards.nim,
        )
    assert list((tmp_path / "new").iterdir()) == []


def test_evaluations_by_games_do_not_change_training(tmp_path, rows):
    plain = train(settings(tmp_path, eval_against="self"), factory=boards.nim).run_dir
    judged = train(settings(tmp_path, eval_against="random"), factory=boards.nim).run_dir
    weights = [
        next((run / "checkpoints").glob("step_64/model.safetensors")).read_bytes() for run in (plain, judged)
    ]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("against", "sentence"),
    [
        ("runs/nowhere", "eval_against 'runs/nowhere' is not a player"),
        ("nowhere:f", "eval_against 'nowhere:f' cannot be imported"),
        ("", "eval_against is ''"),
    ],
)
def test_bad_opponents_leave_no_run_folder(tmp_path, against, sentence):
    with pytest.raises(UserError, match=sentence):
        train(settings(tmp_path, eval_against=against), factory=boards.nim)
    assert not (tmp_path / "runs").exists()


def test_an_opponent_of_another_game_leaves_no_run_folder(tmp_path, trained):
    other = trained(boards.bids)
    with pytest.raises(UserError, match="was trained in another game"):
        train(
            settings(tmp_path, eval_against=str(other), output_dir=str(tmp_path / "new")), factory=boards.nim
        )
    assert not (tmp_path / "new").exists()


def test_a_single_agent_has_no_win_rate(tiny):
    with pytest.raises(
        UserError, match="best_by is win_rate, but 'tiny_envs:Clockwork-v0' has a single agent"
    ):
        train(tiny(best_by="win_rate"))
    with pytest.raises(UserError, match="eval_against is given, but"):
        train(tiny(eval_against="random"))


def test_win_rate_needs_an_opponent(tmp_path):
    with pytest.raises(ConfigError, match="best_by is win_rate, but eval_against is self"):
        settings(tmp_path, best_by="win_rate", eval_against="self")


def test_the_function_of_a_foreign_run_is_not_imported(tmp_path, monkeypatch):
    """A run that somebody else wrote would import its player; it needs trust, like every module."""
    config = settings(tmp_path, eval_against="support.boards:coin_nim", total_timesteps=128)
    run_dir = train(config, factory=boards.nim, callbacks=[StopAtCollect(64)]).run_dir
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "somebody"))
    with pytest.raises(UserError, match=r"import the module 'support.boards' for its eval_against"):
        resume(run_dir, factory=boards.nim)
    with pytest.raises(UserError, match=r"import the module 'support.boards' for its eval_against"):
        PPO.load(run_dir, env=boards.nim).learn(64)
    resume(run_dir, factory=boards.nim, trust_modules=True)


def test_a_config_with_a_player_is_signed_only_if_its_module_is_imported(tmp_path):
    assert imports_nothing(settings(tmp_path, eval_against="support.boards:coin_nim"))
    assert not imports_nothing(settings(tmp_path, eval_against="not_imported_yet:player"))
