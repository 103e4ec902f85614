"""Whole games between players: results, seeds, openings, and what players are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_training.config import TrainConfig
from rl_training.core.errors import EnvironmentFault, RunFault
from rl_training.experiment.games.judging import generators, judge, rules_of, summary_of
from rl_training.experiment.games.matches import Fixture, Rules, play_games, results_of
from rl_training.experiment.games.players import FunctionPlayer, RandomPlayer, random_action
from support.games import JointGame, TurnGame, play_at_once, play_in_turns, plots

boards = pytest.importorskip("support.boards")
NIM = {"first": ("first",), "second": ("second",)}
BIDS = {name: (name,) for name in "abc"}


def rules(factory, sides, **settings):
    config = TrainConfig(algo="ppo", env_id=factory.__name__, **settings)
    return rules_of(config, factory, sides)


def function(name):
    return FunctionPlayer(getattr(boards, name), name)


def test_the_perfect_player_wins_where_it_can():
    """With seven stones the first player wins; with any number, the perfect one loses only from a multiple of 3."""
    judged = judge(rules(boards.nim_of_seven, NIM), function("perfect_nim"), RandomPlayer(), games=40, seed=1)
    assert all(each.game.results["first"] == "win" for each in judged if each.side == "first")
    twins = judge(
        rules(boards.nim_of_seven, NIM), function("perfect_nim"), function("perfect_nim"), games=4, seed=1
    )
    assert [each.game.returns for each in twins] == [{"first": 1.0, "second": -1.0}] * 4
    assert all(each.game.length == 5 for each in twins)


def test_sides_take_turns_and_share_their_starts():
    judged = judge(rules(boards.nim, NIM), RandomPlayer(), RandomPlayer(), games=8, seed=1)
    assert [each.side for each in judged] == ["first", "second"] * 4
    seeds = [each.game.seed for each in judged]
    assert seeds[::2] == seeds[1::2]
    assert len(set(seeds)) == 4


def test_the_same_seed_gives_the_same_games():
    def games(seed):
        players = (function("coin_nim"), RandomPlayer())
        return [each.game for each in judge(rules(boards.nim, NIM), *players, games=60, seed=seed)]

    assert games(1) == games(1)
    assert games(1) != games(2)


def test_a_game_with_three_agents():
    """The highest bidder beats both others; two of them share the best, which is a draw."""
    judged = judge(rules(boards.bids, BIDS), function("highest_bid"), RandomPlayer(), games=90, seed=1)
    for each in judged:
        mine, others = each.game.returns[each.side], [each.game.returns[a] for a in "abc" if a != each.side]
        assert mine == 4.0
        assert each.game.results[each.side] == ("draw" if max(others) == 4.0 else "win")
    # each other bidder reaches 4 in 1 of 9 games
    found = summary_of(judged, BIDS)
    assert found["draws"] / 90 == pytest.approx(1 - (8 / 9) ** 2, abs=0.15)
    assert found["losses"] == 0
    assert found["mean_reward"] == 4.0
    assert {side: own["num_games"] for side, own in found["seats"].items()} == {"a": 30, "b": 30, "c": 30}
    assert found["seats"]["b"]["returns"]["b"] == 4.0
    assert found["seats"]["b"]["returns"]["a"] < 3.0


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ({"a": 3.0, "b": 1.0, "c": 1.0}, {"team": "win", "c": "loss"}),  # the mean of the team is 2
        ({"a": 1.0, "b": 1.0, "c": 2.0}, {"team": "loss", "c": "win"}),  # although its sum is 2
        ({"a": 0.1 + 0.2, "b": 0.3, "c": 0.3}, {"team": "draw", "c": "draw"}),
    ],
)
def test_results_of_sides(returns, expected):
    assert results_of({"team": ("a", "b"), "c": ("c",)}, returns) == expected


def test_agents_that_ended_are_paid_no_more():
    class Generous(boards.Bids):
        def step(self, actions):
            seen, rewards, over, alive, infos = super().step(actions)
            if self.round == 1:
                over = over | {"a": True}
                self.agents = ["b", "c"]
            return seen, rewards | {"a": 100.0}, over, alive, infos

    player = function("highest_bid")
    fixture = Fixture(dict.fromkeys("abc", player), 0)
    (game,) = play_games(Rules(Generous, BIDS), [fixture], generators([player], 0))
    assert game.returns == {"a": 100.0, "b": 4.0, "c": 4.0}


def test_random_openings_are_random_seeded_and_only_at_the_start():
    seen = []

    def observed(observation, mask):
        seen.append(int(observation[0]))
        return boards.perfect_nim(observation, mask)

    def games(openings):
        seen.clear()
        player = FunctionPlayer(observed, "observed")
        judged = judge(
            rules(boards.nim_of_seven, NIM), player, player, games=40, seed=3, random_openings=openings
        )
        return [each.game for each in judged], list(seen)

    without, _ = games(0)
    assert {game.length for game in without} == {5}
    opened, first = games(2)
    again, second = games(2)
    assert opened == again
    assert first == second
    assert 7 not in first
    assert set(range(3, 6)) <= set(first)
    assert [game.returns for game in opened[::2]] == [
        game.returns for game in opened[1::2]
    ]  # the same openings
    assert games(100)[1] == []


def test_a_long_game_is_cut_off_and_says_so():
    with pytest.warns(UserWarning, match="4 of 4 games did not end within 2 steps"):
        judged = judge(
            rules(boards.nim_of_seven, NIM, max_eval_episode_steps=2),
            RandomPlayer(),
            RandomPlayer(),
            games=4,
            seed=1,
        )
    assert all(each.game.capped and each.game.length == 2 for each in judged)
    assert summary_of(judged, NIM)["num_capped_episodes"] == 4
    assert all(each.game.results == {"first": "draw", "second": "draw"} for each in judged)


def test_max_episode_steps_end_a_game():
    limited = judge(
        rules(boards.nim_of_seven, NIM, max_episode_steps=3), RandomPlayer(), RandomPlayer(), games=2, seed=1
    )
    assert all(each.game.length == 3 and not each.game.capped for each in limited)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "greedy_nim",
            "player 'greedy_nim' returned action 1 for agent 'first', which is not allowed now; allowed are 0",
        ),
        ("broken", "player 'broken' raised ZeroDivisionError: my mistake"),
        ("highest_bid", "player 'highest_bid' raised AssertionError"),
    ],
)
def test_faults_of_players_name_them(name, sentence):
    with pytest.raises(RunFault, match=sentence):
        judge(Rules(lambda: boards.Nim(1), NIM), function(name), RandomPlayer(), games=1, seed=1)


def test_faults_of_games_name_them():
    class Bad(boards.Nim):
        def step(self, action):
            super().step(action)
            raise ValueError("lost a stone")

    class Infinite(boards.Nim):
        def last(self, observe=True):
            seen, _, *rest = super().last(observe)
            return seen, float("nan"), *rest

    class Strict(boards.Nim):
        def observe(self, agent):
            return super().observe(agent) | {"action_mask": np.zeros(2, np.int8)}

    for game, sentence in (
        (Bad, "raised ValueError in step: lost a stone"),
        (Infinite, "paid agent .* nan"),
        (Strict, "allows agent 'first' no action, although it acts next"),
    ):
        with pytest.raises(EnvironmentFault, match=sentence):
            judge(Rules(game, NIM, name="game 'nim'"), RandomPlayer(), RandomPlayer(), games=1, seed=1)


@given(plots(), st.integers(0, 99), st.booleans())
def test_returns_are_those_of_the_games_own_loop(plot, seed, in_turns):
    """Agents that die, come late and wait: the same actions in the loop of PettingZoo's documentation pay the same."""
    build, loop = (TurnGame, play_in_turns) if in_turns else (JointGame, play_at_once)
    game, player = build(plot), RandomPlayer()
    sides = {agent: (agent,) for agent in plot.agents}
    done = []
    rules = Rules(lambda: game, sides, watch=done.append)
    fixture = Fixture(dict.fromkeys(plot.agents, player), seed)
    (played,) = play_games(rules, [fixture], generators([player], seed))
    acted = {agent: [step.actions[agent] for step in done if agent in step.actions] for agent in plot.agents}
    stories = loop(build(plot), seed, lambda agent: acted[agent].pop(0))
    assert played.returns == pytest.approx(
        {agent: sum(deed.paid for deed in story.deeds) + story.before for agent, story in stories.items()}
    )
    assert not any(acted.values())


def test_rebuilt_games():
    built = []

    def build():
        built.append(boards.Nim())
        return built[-1]

    def play(rebuild):
        built.clear()
        player = RandomPlayer()
        fixtures = [Fixture({"first": player, "second": player}, seed) for seed in range(40)]
        return play_games(Rules(build, NIM, rebuild=rebuild), fixtures, generators([player], 0))

    assert play(False)
    assert len(built) == 32
    assert play(True)
    assert len(built) == 40


def test_random_actions_obey_masks_and_spaces():
    from gymnasium import spaces

    rng = np.random.default_rng(0)
    drawn = {
        random_action(spaces.Discrete(5, start=3), np.array([0, 1, 0, 1, 1], bool), rng) for _ in range(99)
    }
    assert drawn == {4, 6, 7}
    for space in (
        spaces.Box(-1, 1, (2,), np.float32),
        spaces.Box(0, 3, (2,), np.int64),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiDiscrete([2, 3], start=[5, 7]),
        spaces.MultiBinary(4),
    ):
        found = [random_action(space, None, rng) for _ in range(50)]
        assert all(space.contains(each) for each in found)
        assert len({each.tobytes() for each in found}) > 3
    mask = np.array([1, 0, 0, 1, 1], bool)
    found = {tuple(random_action(spaces.MultiDiscrete([2, 3]), mask, rng)) for _ in range(50)}
    assert found == {(0, 1), (0, 2)}


def test_random_against_random_at_connect_four():
    """The first player wins 55.5% of random games, and 0.3% are drawn."""
    pytest.importorskip("pygame")
    config = TrainConfig(algo="ppo", env_id="pettingzoo://classic/connect_four_v3")
    sides = {"player_0": ("player_0",), "player_1": ("player_1",)}
    judged = judge(rules_of(config, None, sides), RandomPlayer(), RandomPlayer(), games=600, seed=5)
    first = [each.game.results["player_0"] for each in judged]
    assert first.count("win") / 600 == pytest.approx(0.555, abs=0.06)  # three standard errors
    assert first.count("draw") / 600 < 0.015
