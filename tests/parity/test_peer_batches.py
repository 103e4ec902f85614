"""The package against stable-baselines3 on the same batches, where that is installed: see `peer_batches`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed: run make test-extras")

from peer_batches import EPISODES, EPISODES_APART, LEARNING
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from rl_training.algorithms import ALGORITHMS
from support.configs import tiny_config

pytestmark = pytest.mark.extra


@pytest.fixture(autouse=True)
def float64_on_one_thread() -> Iterator[None]:
    """In place of the folder's: the peer computes in float32 whatever torch's default is, so does this comparison."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", LEARNING)
def test_the_same_batches_teach_the_same(name: str) -> None:
    case = LEARNING[name]
    found = case.run()
    assert found.moved > 5e-3, "a network did not learn, so nothing was compared"
    assert found.parameters <= case.parameters
    assert found.losses <= case.losses


@pytest.mark.parametrize("what", EPISODES)
def test_the_same_episodes_are_remembered_alike(what: str) -> None:
    seen: Any = EPISODES[what]()
    assert seen.spread > 0.1
    assert seen.apart <= EPISODES_APART


@pytest.mark.parametrize("algo", sorted(ALGORITHMS))
def test_the_peers_own_evaluation_plays_our_models(algo: str, tmp_path: Path) -> None:
    env_id = "Pendulum-v1" if algo in ("sac", "td3") else "CartPole-v1"
    model = ALGORITHMS[algo](tiny_config(algo, tmp_path, env_id=env_id)).learn()
    returns, lengths = evaluate_policy(
        model, make_vec_env(env_id, n_envs=2, seed=3), n_eval_episodes=4, return_episode_rewards=True
    )
    assert len(returns) == len(lengths) == 4
    assert env_id != "CartPole-v1" or returns == lengths
