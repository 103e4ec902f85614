"""Tournaments: all pairs from both seats, ratings that follow the results, and the files."""

import json

import pytest

from rl_training import PPO
from rl_training.core.errors import UserError
from rl_training.experiment.games.tournament import play_tournament
from rl_training.experiment.start import train
from rl_training.lab.tournament_report import short_names, tournament_text, write_tournament
from support.configs import SETTINGS

boards = pytest.importorskip("support.boards")
PERFECT, COIN = "support.boards:perfect_nim", "support.boards:coin_nim"


@pytest.fixture(scope="module")
def nim_run(tmp_path_factory):
    model = PPO(
        boards.nim,
        total_timesteps=64,
        num_envs=2,
        output_dir=str(tmp_path_factory.mktemp("runs")),
        eval_every_timesteps=0,
        num_eval_episodes=2,
        hidden_sizes=(8,),
        **SETTINGS["ppo"],
    )
    model.learn()
    return str(model.run_dir)


def played(nim_run, *others, **settings):
    usual = {"games": 20, "env": boards.nim, "seed": 1}
    return play_tournament([nim_run, *others], **usual | settings)


def test_all_pairs_play_from_both_seats(nim_run):
    tournament = played(nim_run, "random", PERFECT, COIN, random_openings=0)
    assert [(pair.first, pair.second) for pair in tournament.pairs] == [
        (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)
    ]  # fmt: skip
    names = [nim_run, "random", PERFECT, COIN]
    for pair in tournament.pairs:
        assert [each.side for each in pair.games] == ["first", "second"] * 10
        for each in pair.games:
            other = "second" if each.side == "first" else "first"
            assert each.game.seating[each.side] == names[pair.first]
            assert each.game.seating[other] == names[pair.second]
    scores = tournament.scores()
    assert scores[2, 1] == pytest.approx(1.0 - scores[1, 2])
    assert scores[2, 1] > 0.75


def test_ratings_follow_results(nim_run):
    found = played(nim_run, "random", PERFECT, COIN, games=60, random_openings=0).to_dict()
    players = {player["name"]: player for player in found["players"]}
    assert found["anchor"] == "random = 0"
    assert players["random"]["elo"] == 0.0
    assert players["random"]["elo_interval"] == [0.0, 0.0]
    assert found["players"][0]["name"] == PERFECT  # ordered by rating
    low, high = players[PERFECT]["elo_interval"]
    assert 100 < low < players[PERFECT]["elo"] < high
    low, high = players[COIN]["elo_interval"]
    assert low < 0 < high  # it is as good as random
    for player in found["players"]:
        assert player["wins"] + player["draws"] + player["losses"] == 180
        assert player["score"] == (player["wins"] + player["draws"] / 2) / 180
    assert sum(player["wins"] for player in found["players"]) == sum(
        player["losses"] for player in found["players"]
    )


def test_without_random_the_mean_is_1000(nim_run):
    found = played(nim_run, PERFECT).to_dict()
    assert found["anchor"] == "mean = 1000"
    assert sum(player["elo"] for player in found["players"]) == pytest.approx(2000)


def test_the_same_seed_gives_the_same_tournament(nim_run):
    first = played(nim_run, "random", COIN).to_dict()
    assert first == played(nim_run, "random", COIN).to_dict()
    assert first != played(nim_run, "random", COIN, seed=2).to_dict()


def test_it_says_how_moves_were_chosen(nim_run):
    opened = played(nim_run, "random", games=2).to_dict()
    assert opened["how"] == (
        "the first 2 moves of each game are random; agents take their most likely actions"
    )
    sampled = played(nim_run, "random", games=2, random_openings=0, sampled=True).to_dict()
    assert sampled["how"] == "actions are sampled"
    for found in (opened, sampled):
        assert found["how"] in tournament_text(found)


def test_files(nim_run, tmp_path):
    tournament = played(nim_run, "random")
    files = write_tournament(tournament, tmp_path / "new" / "folder")
    assert [file.name for file in files] == ["tournament.json", "tournament.md", "tournament.png"]
    assert json.loads(files[0].read_text(encoding="utf-8")) == tournament.to_dict()
    text = files[1].read_text(encoding="utf-8")
    assert "random = 0" in text
    assert files[2].read_bytes().startswith(b"\x89PNG")
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match="the tournament cannot be written to"):
        write_tournament(tournament, tmp_path / "file")


def test_short_names():
    assert short_names(["a/runs/x", "b/runs/x", "x"]) == ["a/runs/x", "b/runs/x", "x"]
    assert short_names(["runs/ppo|1", "random"]) == ["ppo?1", "random"]
    assert short_names(["runs/" + "x" * 50, "random"])[0] == "…" + "x" * 29


@pytest.mark.parametrize(
    ("others", "changes", "sentence"),
    [
        ([], {}, "needs two players or more"),
        (["random", "random"], {}, "'random' is given twice"),
        (["self"], {}, "'self' is no player of a tournament"),
        (["random"], {"games": 1}, "games is 1; use 2 or more"),
        (["random"], {"random_openings": -1}, "random_openings is -1"),
        (["nowhere"], {}, "tournament 'nowhere' is not a player"),
    ],
)
def test_bad_input(nim_run, others, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        played(nim_run, *others, **changes)


def test_other_games(nim_run, tiny):
    with pytest.raises(UserError, match="needs a run or saved agent"):
        play_tournament(["random", PERFECT])
    alone = str(train(tiny()).run_dir)
    with pytest.raises(UserError, match="which has a single agent"):
        played(nim_run, alone)
    with pytest.raises(UserError, match="which has a single agent"):
        play_tournament([alone, "random"])
    three = str(train(tiny(env_id="bids"), factory=boards.bids).run_dir)
    with pytest.raises(UserError, match="is for games of two agents, and 'bids' has 3"):
        play_tournament([three, "random"], env=boards.bids)
    with pytest.raises(UserError, match="was trained in another game"):
        played(nim_run, three)


def test_the_command(nim_run, cli, tmp_path):
    game = ("--env-factory", "support.boards:nim", "--games", 4, "--output-dir", tmp_path / "T")
    done = cli("tournament", nim_run, "random", PERFECT, *game)
    assert done.code == 0, done.err
    assert "# Tournament: nim" in done.out
    assert f"{tmp_path}/T/tournament.png" in done.out
    found = json.loads(cli("tournament", nim_run, "random", PERFECT, *game, "--json").out)
    assert found == json.loads((tmp_path / "T" / "tournament.json").read_text(encoding="utf-8"))
    warned = cli("tournament", nim_run, PERFECT, *game, "--random-openings", 0)
    assert "two agents repeat one game from each seat" in warned.out
    refused = cli("tournament", nim_run)
    assert refused.code == 2
    assert "needs two players or more" in refused.sentence
