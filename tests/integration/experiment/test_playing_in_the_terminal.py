"""`rl-training play`: what a person sees, types and gets; and the games that are recorded."""

import io

import numpy as np
import pytest
from gymnasium import spaces

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.experiment.games.boards import board_text, is_board
from rl_training.experiment.games.game_records import FILE, read_games
from rl_training.experiment.start import train
from support.configs import SETTINGS

boards = pytest.importorskip("support.boards")


@pytest.fixture
def run_of(tmp_path):
    def build(factory, env_id=None, **changes):
        config = TrainConfig(algo="ppo", env_id=env_id or factory.__name__).with_overrides(
            output_dir=str(tmp_path / "runs"),
            total_timesteps=64,
            num_envs=2,
            num_eval_episodes=2,
            hidden_sizes=(8,),
            **SETTINGS["ppo"] | changes,
        )
        return train(config, factory=factory).run_dir

    return build


@pytest.fixture
def typing(cli, monkeypatch):
    """Call `play` with these lines as input."""

    def call(run_dir, lines, *flags):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return cli("play", run_dir, *flags)

    return call


NIM = ("--env-factory", "support.boards:nim_of_seven")


def test_a_whole_game(run_of, typing, tmp_path):
    """Seven stones: take one, and then leave a multiple of three: the person wins."""
    run_dir = run_of(boards.nim_of_seven)
    record = tmp_path / "games"
    # after the first 0 six stones are left; whatever the agent takes, one of both answers leaves three
    for answers in (["0", "0", "0"], ["0", "0", "1"], ["0", "1", "0"], ["0", "1", "1"]):
        done = typing(run_dir, answers, *NIM, "--seat", "first", "--record", record)
        assert done.code == 0, done.err
        if "You won." in done.out:
            break
    else:
        pytest.fail("no answers win, but the first player can")
    assert "stones: ooooooo" in done.out
    assert "first, your action (0, 1; q quits)" in done.out
    assert "second plays" in done.out
    assert "You won 1, drew 0 and lost 0." in done.out
    games = read_games(record)
    game = games[-1]
    assert game.env_id == "nim_of_seven"
    assert game.players["first"] == "person"
    assert game.returns == {"first": 1.0, "second": -1.0}
    assert game.results == {"first": "win", "second": "loss"}
    assert [next(iter(step.actions.items())) for step in game.steps][0::2] == [
        ("first", int(answer)) for answer in answers[: (len(game.steps) + 1) // 2]
    ]
    stones = 7
    for step in game.steps:  # the record replays the game
        ((agent, action),) = step.actions.items()
        assert step.observations[agent].tolist() == [stones]
        assert step.observations[agent].dtype == np.float32
        assert step.masks[agent].tolist() == [True, stones >= 2]
        stones -= action + 1
    assert stones == 0
    assert sum(step.rewards.get("first", 0.0) for step in game.steps) == 1.0


def test_wrong_input_is_answered(run_of, typing):
    run_dir = run_of(boards.nim_of_seven)
    done = typing(run_dir, ["two", "7", "-1", "", "0", "q"], *NIM, "--seat", "first")
    assert done.code == 0, done.err
    for sentence in (
        "'two' is not a number; type one of 0, 1",
        "'7' is not allowed now; type one of 0, 1",
        "'-1' is not allowed now",
        "'' is not a number",
    ):
        assert sentence in done.out
    assert "You won 0, drew 0 and lost 0." in done.out


@pytest.mark.parametrize("lines", [[], ["q"], ["quit"], ["0"], ["0", "Q"]])
def test_leaving_ends_cleanly(run_of, typing, lines, tmp_path):
    done = typing(run_of(boards.nim_of_seven), lines, *NIM, "--record", tmp_path / "games")
    assert (done.code, done.err) == (0, "")
    assert read_games(tmp_path / "games") == []  # games that were not finished are not recorded


def test_seats_take_turns(run_of, typing):
    run_dir = run_of(boards.nim_of_seven)
    done = typing(run_dir, ["0"] * 40, *NIM)
    seats = [line for line in done.out.splitlines() if line.startswith("Game ")]
    assert seats[:3] == ["Game 1: you are first.", "Game 2: you are second.", "Game 3: you are first."]


def test_a_board_of_two_planes(run_of, typing, tmp_path):
    pytest.importorskip("pygame")
    run_dir = run_of(None, "pettingzoo://classic/tictactoe_v3")
    done = typing(
        run_dir, [*map(str, range(9)), *map(str, range(9))], "--seat", "player_2", "--record", tmp_path
    )
    assert done.code == 0, done.err
    first = done.out.split("player_2, your action")[0]
    assert first.count("O") == 1  # the agent's first move
    assert "player_1 plays" in first
    (game, *_) = read_games(tmp_path)
    assert next(iter(game.steps[0].observations.values())).shape == (3, 3, 2)
    ended = max(game.results.values(), key=["loss", "draw", "win"].index)
    assert ended in ("draw", "win")
    assert any(text in done.out for text in ("You won.", "A draw.", "You lost."))


def test_board_text():
    planes = np.zeros((2, 3, 2), np.int8)
    planes[0, 1, 0] = planes[1, 2, 1] = 1
    assert board_text(planes) == ". X .\n. . O"
    assert board_text(np.array([[0, 3], [9, 1]])) == "0 3\n9 1"


@pytest.mark.parametrize(
    ("space", "fits"),
    [
        (spaces.Box(0, 1, (6, 7, 2), np.int8), True),
        (spaces.Box(0, 9, (4, 4), np.int64), True),
        (spaces.Box(0, 1, (6, 7, 3), np.int8), False),
        (spaces.Box(0, 2, (6, 7, 2), np.int8), False),
        (spaces.Box(0, 1, (84, 84, 2), np.int8), False),
        (spaces.Box(0, 1, (4, 4), np.float32), False),
        (spaces.Box(0, 1, (4,), np.int8), False),
        (spaces.Discrete(4), False),
    ],
)
def test_what_is_a_board(space, fits):
    assert is_board(space) == fits


class Silent(boards.Nim):
    """Nim that renders nothing."""

    metadata = boards.Nim.metadata | {"render_modes": []}


class Wheels(boards.Bids):
    """Bids with a continuous action."""

    metadata = boards.Bids.metadata | {"render_modes": ["ansi"]}

    def action_space(self, agent):
        return spaces.Box(0, 2, (1,), np.float32)


def test_games_that_cannot_be_played_are_refused(run_of, typing, monkeypatch):
    monkeypatch.setattr(boards, "silent", lambda **kwargs: Silent(), raising=False)
    monkeypatch.setattr(boards, "wheels", lambda **kwargs: Wheels(), raising=False)
    silent = run_of(boards.silent, "silent")
    done = typing(silent, [], "--env-factory", "support.boards:silent")
    assert done.code == 2
    assert "cannot be shown in a terminal: it has no render_mode 'ansi'" in done.sentence
    wheels = run_of(boards.wheels, "wheels")
    done = typing(wheels, [], "--env-factory", "support.boards:wheels")
    assert done.code == 2
    assert "which cannot be typed; play is for games with Discrete actions" in done.sentence


def test_bad_input(run_of, typing, tiny, tmp_path):
    run_dir = run_of(boards.nim_of_seven)
    done = typing(run_dir, [], *NIM, "--seat", "frist")
    assert done.code == 2
    assert "seat is 'frist'; did you mean 'first'?; use one of first, second" in done.sentence
    (tmp_path / "file").write_text("x", encoding="utf-8")
    done = typing(run_dir, [], *NIM, "--record", tmp_path / "file")
    assert done.code == 2
    assert "cannot be written" in done.sentence
    done = typing(train(tiny()).run_dir, [])
    assert done.code == 2
    assert "which has a single agent" in done.sentence


def test_damaged_records_are_reported(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_games(tmp_path)
    for damage in ("{", "[]", '{"env_id": "x"}'):
        (tmp_path / FILE).write_text(damage, encoding="utf-8")
        with pytest.raises(UserError, match="is damaged in line 1"):
            read_games(tmp_path)
