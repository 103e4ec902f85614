"""`benchmarks/games_peer.py`: its settings are valid, the peer's policies act as they should, the page is right."""

import sys

import numpy as np
import pytest

from loading import ROOT
from rl_training.algorithms import ALGORITHMS


@pytest.fixture
def peer(monkeypatch):
    pytest.importorskip("mpe2")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "games_peer", raising=False)
    import games_peer

    return games_peer


def test_both_sides_learn_from_whole_rollouts_in_minibatches_of_the_same_rows(peer):
    """Ours counts rows of agents, BenchMARL steps of the game."""
    for task in peer.TASKS.values():
        rows, steps = (
            peer.ours_settings(task)["batch_size"],
            peer.SETTINGS["num_games"] * peer.SETTINGS["num_steps"],
        )
        assert task.game_steps % steps == 0
        assert rows * task.algorithm["num_minibatches"] == steps * task.team
        for algo in peer.ALGOS.values():
            assert (
                not ALGORITHMS[algo]
                .config_class(**peer.ours_settings(task))
                .problems(peer.SETTINGS["num_games"] * task.team)
            )


def test_a_network_acts_as_its_layers_say(peer):
    rng = np.random.default_rng(1)
    shapes = [(4, 3), (4,), (4, 4), (4,), (2, 4), (2,)]
    layers = {f"a/{number}": rng.normal(size=shape) for number, shape in enumerate(shapes)}
    act, seen = peer.network_actions(layers), {"a": np.array([0.5, -1.0, 2.0])}
    first, bias, second, more, last, end = layers.values()
    logits = last @ np.tanh(second @ np.tanh(first @ seen["a"] + bias) + more) + end
    assert act(seen, False, rng) == {"a": int(logits.argmax())}
    drawn = np.mean([act(seen, True, rng)["a"] for _ in range(4_000)])
    assert drawn == pytest.approx(1 / (1 + np.exp(logits[0] - logits[1])), abs=0.03)


def test_returns_are_summed_over_steps_and_averaged_over_agents(peer, monkeypatch):
    """In speaker-listener both agents are paid the same, so the mean over agents is what each of them gets."""
    act = peer.random_actions("simple_speaker_listener_v4")
    assert -60 < peer.mean_returns("simple_speaker_listener_v4", act, 20, sampled=True) < -20
    again = [
        peer.mean_returns("simple_spread_v3", peer.random_actions("simple_spread_v3"), 2, sampled=True)
    ] * 2
    assert again[0] == again[1]


def test_the_page_compares_sides_and_algorithms(peer):
    found = {}
    for name in peer.TASKS:
        found[f"{name}|random"] = {"return": -30.0, "sampled_return": -31.0}
        for place, (algo, side) in enumerate((a, s) for a in peer.ALGOS for s in peer.SIDES):
            for seed in (2, 1):
                found[f"{name}|{algo}|{side}|{seed}"] = {
                    "return": -20.0 + place + seed, "sampled_return": -25.0, "seconds_per_1000": 1.0 + place,
                }  # fmt: skip
        for algo in peer.ALGOS:
            found[f"{name}|{algo}|wrapper|0"] = {"seconds_per_1000": 9.0}
    page = peer.report(found)
    name = "simple_spread_v3"
    assert (
        f"| {name} | 120,000 | IPPO | 2 | -30.00 | -18.50 [-19.00, -18.00] | -17.50 [-18.00, -17.00] | -1.00 ["
        in page
    )
    assert f"| {name} | ours | 2 | 2.00 [2.00, 2.00] |" in page  # paired by seed: no spread
    assert f"| {name} | MAPPO | 3.00 | 4.00 | 9.00 |" in page
    unfinished = {key: row for key, row in found.items() if not key.endswith("ippo|benchmarl|2")}
    shorter = peer.report(unfinished)
    assert "| IPPO | 2 |" not in shorter
    assert "| MAPPO | 2 |" in shorter
    lone = found[f"{name}|ippo|ours|1"]
    third = {f"{name}|ippo|ours|3": lone, f"{name}|mappo|ours|4": lone}
    assert f"| {name} | ours | 2 | 2.00 [2.00, 2.00] |" in peer.report(found | third)  # seeds that both have
