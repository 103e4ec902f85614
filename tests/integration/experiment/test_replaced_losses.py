"""A replaced loss is the loss that trains: by subclass, by argument, by patching its module, for every algorithm."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_training import A2C, DQN, PPO, SAC, TD3, RecurrentPPO
from rl_training.algorithms import a2c, ppo, q_objective, sac, td3
from rl_training.algorithms.base import Algorithm
from rl_training.core.errors import UserError
from rl_training.core.state import split_state

ROLLOUT = {"num_envs": 2, "num_steps": 16, "hidden_sizes": (8,), "ent_coef": 0.01}
REPLAY = {"num_envs": 1, "learning_starts": 8, "batch_size": 8, "train_freq": 4, "hidden_sizes": (8,)}
RUN: dict[str, Any] = {"seed": 3, "num_eval_episodes": 1, "max_episode_steps": 20, "num_threads": 1}


@dataclass(frozen=True)
class Case:
    """One loss of one algorithm, and the groups of state that only it trains."""

    algorithm: type[Algorithm]
    env_id: str
    settings: dict[str, Any]
    module: Any
    function: str
    name: str = "loss"
    own: tuple[str, ...] = ("model/",)

    @property
    def built_in(self) -> Any:
        return getattr(self.module, self.function)


POLE, SWING = "CartPole-v1", "Pendulum-v1"
CRITICS = ("critics/online/",)
DISTRIBUTIONS = {"distribution": "c51", "num_atoms": 5}, {"distribution": "quantile", "num_quantiles": 4}
CASES = {
    "ppo": Case(PPO, POLE, ROLLOUT | {"batch_size": 16, "update_epochs": 2}, ppo, "ppo_loss"),
    "recurrent ppo": Case(
        RecurrentPPO, POLE, ROLLOUT | {"batch_size": 16, "update_epochs": 2, "core_size": 4}, ppo, "ppo_loss"
    ),
    "a2c": Case(A2C, POLE, ROLLOUT, a2c, "a2c_loss"),
    "ppo continuous": Case(PPO, SWING, ROLLOUT | {"batch_size": 16, "update_epochs": 2}, ppo, "ppo_loss"),
    "dqn": Case(DQN, POLE, REPLAY, q_objective, "td_loss"),
    "dqn double": Case(DQN, POLE, REPLAY | {"double": True, "prioritized": True}, q_objective, "td_loss"),
    "dqn c51": Case(DQN, POLE, REPLAY | DISTRIBUTIONS[0], q_objective, "categorical_loss"),
    "dqn quantile": Case(DQN, POLE, REPLAY | DISTRIBUTIONS[1], q_objective, "quantile_loss"),
    "sac critic": Case(SAC, SWING, REPLAY, sac, "sac_critic_loss", "critic_loss", CRITICS),
    "sac actor": Case(SAC, SWING, REPLAY, sac, "sac_actor_loss", "actor_loss"),
    "sac temperature": Case(
        SAC, SWING, REPLAY, sac, "sac_temperature_loss", "temperature_loss", ("learner/log_alpha",)
    ),
    "td3 critic": Case(TD3, SWING, REPLAY, td3, "td3_critic_loss", "critic_loss", CRITICS),
    "td3 actor": Case(TD3, SWING, REPLAY, td3, "td3_actor_loss", "actor_loss"),
}
GROUPS = ("model/", "critics/online/", "learner/log_alpha")


def times(factor: float, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the loss times a factor."""

    def scaled(*arguments: Any, **settings: Any) -> Any:
        found = function(*arguments, **settings)
        return found | {"loss": factor * found["loss"]} if isinstance(found, dict) else factor * found

    return scaled


def numbers(model: Algorithm) -> dict[str, Tensor]:
    """Return a copy of all tensors that a loss trains, by the name of their group and their own."""
    found = {}
    for group, state in model.agent.state.items():
        tensors, _ = split_state(state)
        found |= {f"{group}/{name}": tensor.detach().clone() for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in found.items() if name.startswith(GROUPS)}


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Return the groups with a tensor that changed."""
    changed = [name for name, tensor in before.items() if not torch.equal(tensor, after[name])]
    return {group for group in GROUPS for name in changed if name.startswith(group)}


def groups_of(found: dict[str, Tensor]) -> set[str]:
    return {group for group in GROUPS for name in found if name.startswith(group)}


def make(case: Case, folder: Path, algorithm: type[Algorithm] | None = None, **extra: Any) -> Algorithm:
    settings = case.settings | RUN | extra
    return (algorithm or case.algorithm)(case.env_id, output_dir=str(folder), **settings)


@pytest.fixture(params=CASES)
def case(request: Any) -> Case:
    return CASES[request.param]


@pytest.mark.parametrize("way", ["subclass", "argument", "patched"])
def test_a_loss_times_zero_trains_nothing_and_the_others_train(
    case: Case, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = times(0.0, case.built_in)
    if way == "subclass":
        model = make(case, tmp_path, type("Mine", (case.algorithm,), {case.name: staticmethod(nothing)}))
    elif way == "argument":
        model = make(case, tmp_path, **{case.name: nothing})
    else:
        monkeypatch.setattr(case.module, case.function, nothing)
        model = make(case, tmp_path)
    before = numbers(model)
    after = numbers(model.learn(64))
    assert moved(before, after) == groups_of(before) - set(case.own)


@pytest.mark.slow
def test_a_loss_patched_between_two_calls_of_learn_trains(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(case, tmp_path)
    before = numbers(model)
    middle = numbers(model.learn(64))
    assert moved(before, middle) >= set(case.own)
    called = []

    def watched(*arguments: Any, **settings: Any) -> Any:
        called.append(settings)
        return case_loss(*arguments, **settings)

    case_loss = times(-50.0, case.built_in)
    monkeypatch.setattr(case.module, case.function, watched)
    again = numbers(model.learn(64))
    assert called
    monkeypatch.undo()
    other = make(case, tmp_path)
    other.learn(64)
    unpatched = numbers(other.learn(64))
    assert moved(again, unpatched) >= set(case.own)


def test_a_loss_times_one_trains_as_the_gradient_by_hand(case: Case, tmp_path: Path) -> None:
    plain = numbers(make(case, tmp_path).learn(64))
    same = numbers(make(case, tmp_path, **{case.name: times(1.0, case.built_in)}).learn(64))
    for name, tensor in plain.items():
        torch.testing.assert_close(same[name], tensor, rtol=1e-3, atol=1e-4)


def test_prioritized_replay_needs_the_errors_of_the_loss(tmp_path: Path) -> None:
    def plain(minibatch: Any, *, huber: bool) -> Tensor:
        return (minibatch["values"] - minibatch["targets"]).square().mean()

    make(CASES["dqn"], tmp_path, loss=plain).learn(64)
    with pytest.raises(UserError, match=r"plain.*'errors'.*prioritized"):
        make(CASES["dqn double"], tmp_path, loss=plain).learn(64)


def test_target_kl_needs_the_divergence_of_the_loss(tmp_path: Path) -> None:
    def plain(minibatch: Any, **settings: Any) -> Any:
        return ppo.ppo_loss(minibatch, **settings)["loss"]

    make(CASES["ppo"], tmp_path, loss=plain).learn(64)
    with pytest.raises(UserError, match=r"plain.*'approx_kl'.*target_kl"):
        make(CASES["ppo"], tmp_path, loss=plain, target_kl=0.1).learn(64)


def test_parts_of_a_loss_become_metrics(tmp_path: Path) -> None:
    def calm(minibatch: Any) -> Any:
        return {"loss": SAC.critic_loss(minibatch), "largest_value": minibatch["values"].max()}

    model = make(CASES["sac critic"], tmp_path, critic_loss=calm, log_every_timesteps=32).learn(64)
    assert "train/largest_value" in (Path(str(model.run_dir)) / "metrics.csv").read_text("utf-8")


@pytest.mark.parametrize("path", ["autograd", "explicit"])
def test_the_path_of_a_run_is_in_its_metadata_and_not_in_its_fingerprint(
    case: Case, path: str, tmp_path: Path
) -> None:
    if path == "explicit" and "distribution" in case.settings:
        with pytest.raises(UserError, match=r"has no hand-written gradient"):
            make(case, tmp_path, update_path=path).learn(64)
        assert not list(tmp_path.iterdir())
        return
    model = make(case, tmp_path, update_path=path).learn(64)
    metadata = json.loads((Path(str(model.run_dir)) / "metadata.json").read_text("utf-8"))
    assert metadata["update_path"] == path
    assert metadata["config_fingerprint"] == make(case, tmp_path, total_timesteps=64).config.fingerprint()


def test_errors_of_another_shape_are_refused(tmp_path: Path) -> None:
    def summed(minibatch: Any, **settings: Any) -> Any:
        parts = q_objective.td_loss(minibatch, **settings)
        return parts | {"errors": parts["errors"].sum()}

    model = DQN(
        "CartPole-v1", loss=summed, prioritized=True, learning_starts=16, batch_size=8, hidden_sizes=(8,),
        num_eval_episodes=1, num_threads=1, output_dir=str(tmp_path),
    )  # fmt: skip
    with pytest.raises(UserError, match=r"'errors' of shape \(\); return one number per row, shape \(8,\)"):
        model.learn(64)
