"""Which loss trains, how it is differentiated, and what is said of a loss that cannot be used."""

import functools
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms import ppo, q_objective
from rl_training.algorithms.a2c import A2C_LOSS
from rl_training.algorithms.bc import BC_LOSS
from rl_training.algorithms.cql import CQL_LOSSES
from rl_training.algorithms.dqn import DQN, DQNConfig
from rl_training.algorithms.iql import IQL_LOSSES
from rl_training.algorithms.lookup import is_called
from rl_training.algorithms.losses import (
    Loss,
    function_name,
    replaced_losses,
    resolved_losses,
    source_digest,
)
from rl_training.algorithms.ppo import PPO, PPO_LOSS, PPOConfig
from rl_training.algorithms.q_objective import Q_LOSSES
from rl_training.algorithms.sac import SAC, SAC_LOSSES
from rl_training.algorithms.td3 import TD3_LOSSES
from rl_training.cli.arguments import print_help
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.types import EnvSpec
from rl_training.experiment.building import UserObjects, build_parts
from rl_training.models.fast.backend import NUMPY, TorchBackend


def mine(minibatch: Any, **settings: Any) -> Any:
    return {"loss": (minibatch["values"] ** 2).sum()}


def other(minibatch: Any, **settings: Any) -> Any:
    return {"loss": minibatch["values"].sum()}


def by_hand(minibatch: Any, *, backend: Any, **settings: Any) -> Any:
    return {"loss": (minibatch["values"] ** 2).sum()}, 2 * minibatch["values"]


class Own(PPO):
    """A loss of its own."""

    loss = staticmethod(mine)


class OwnBoth(PPO):
    """A loss and a gradient of its own."""

    loss = staticmethod(mine)
    loss_gradient = staticmethod(by_hand)


class OwnGradient(PPO):
    """Another gradient for the built-in loss."""

    loss_gradient = staticmethod(by_hand)


class OtherLoss(OwnBoth):
    """Another loss than that of its parent, whose gradient does not belong to it."""

    loss = staticmethod(other)


class Inherits(OwnBoth):
    """The pair of its parent."""


def resolved(algorithm: type[PPO], **given: Any) -> Loss:
    return resolved_losses(algorithm, PPOConfig(), given)["loss"]


def names(algorithm: type[PPO], **given: Any) -> dict[str, str]:
    return replaced_losses(algorithm, PPOConfig(), resolved_losses(algorithm, PPOConfig(), given))


@pytest.mark.parametrize(
    ("algorithm", "function", "gradient"),
    [
        (PPO, ppo.ppo_loss, ppo.ppo_gradient),
        (Own, mine, None),
        (OwnBoth, mine, by_hand),
        (OwnGradient, ppo.ppo_loss, by_hand),
        (OtherLoss, other, None),
        (Inherits, mine, by_hand),
    ],
)
def test_a_class_decides(algorithm: type[PPO], function: Any, gradient: Any) -> None:
    assert resolved(algorithm) == Loss(function, gradient)


def test_an_argument_comes_before_the_class() -> None:
    assert resolved(OwnBoth, loss=other) == Loss(other)
    assert resolved(OwnBoth, loss=mine) == Loss(mine, by_hand)
    assert resolved(OwnBoth, loss=ppo.ppo_loss) == PPO_LOSS


def test_what_a_patch_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo, "ppo_gradient", by_hand)
    assert resolved(PPO) == Loss(PPO_LOSS.function, by_hand)
    monkeypatch.setattr(ppo, "ppo_loss", mine)
    assert resolved(PPO) == Loss(mine, by_hand)
    monkeypatch.setattr(ppo, "ppo_gradient", PPO_LOSS.gradient)
    assert resolved(PPO) == Loss(mine)
    assert resolved(OwnGradient) == Loss(mine), "its gradient is that of another loss"
    assert resolved(Own) == Loss(mine)


def _wrapper() -> Any:
    @functools.wraps(ppo.ppo_loss)
    def wrapped(minibatch: Any, **settings: Any) -> Any:
        return mine(minibatch)

    return wrapped


def _closure() -> Any:
    def mine(minibatch: Any, **settings: Any) -> Any:
        return other(minibatch)

    return mine


class Callable:
    """An object that is a loss."""

    def __call__(self, minibatch: Any, **settings: Any) -> Any:
        return mine(minibatch)


@pytest.mark.parametrize("function", [_wrapper(), _closure(), functools.partial(mine, scale=2), Callable()])
def test_a_loss_that_shares_only_its_name_with_another_is_the_one_that_trains(function: Any) -> None:
    class Chooses(PPO):
        @staticmethod
        def losses(settings: Any) -> dict[str, Loss]:
            return {"loss": Loss(function)}

    assert resolved(Chooses).function is function


def test_a_loss_assigned_to_a_class_trains_without_the_old_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PPO, "loss", staticmethod(mine))
    assert resolved(PPO) == Loss(mine)


def test_names_of_replaced_functions() -> None:
    assert names(PPO) == names(PPO, loss=ppo.ppo_loss) == {}
    assert names(Own) == {"loss": f"{__name__}:mine"}
    assert names(OwnGradient) == {"loss_gradient": f"{__name__}:by_hand"}
    assert names(OwnBoth).keys() == {"loss", "loss_gradient"}
    assert function_name(TorchBackend()) == "rl_training.models.fast.backend:TorchBackend"


@pytest.mark.parametrize("distribution", ["none", "c51", "quantile"])
def test_the_loss_of_dqn_follows_from_its_distribution(distribution: Any) -> None:
    settings = DQNConfig(distribution=distribution)
    found = resolved_losses(DQN, settings, {})["loss"]
    assert found == q_objective.Q_LOSSES[distribution]
    assert resolved_losses(DQN, settings, {"loss": mine})["loss"] == Loss(mine)


@pytest.mark.parametrize("backend", [NUMPY, TorchBackend()])
def test_autograd_finds_what_is_found_by_hand(backend: Any) -> None:
    columns = {"values": backend.view(torch.tensor([1.0, -2.0])), "valid": None}
    for loss in (Loss(mine), Loss(mine, by_hand)):
        parts, (gradient,) = loss.differentiate(columns, ("values",), backend, huber=True)
        assert float(parts["loss"]) == 5.0
        assert type(gradient) is type(columns["values"])
        assert np.asarray(gradient).tolist() == [2.0, -4.0]
    assert np.asarray(columns["values"]).tolist() == [1.0, -2.0]


def test_a_loss_may_be_a_tensor_alone_and_need_not_use_every_column() -> None:
    columns = {"values": torch.tensor([1.0, 2.0]), "logprobs": torch.tensor([3.0, 4.0])}
    loss = Loss(lambda minibatch: minibatch["values"].sum())
    parts, gradients = loss.differentiate(columns, ("values", "logprobs"), TorchBackend())
    assert parts.keys() == {"loss"}
    assert [part.tolist() for part in gradients] == [[1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("function", "culprit", "remedy"),
    [
        (lambda minibatch: minibatch["values"], "a tensor of shape (2,)", "one number"),
        (lambda minibatch: 3.0, "3.0", "one number"),
        (lambda minibatch: {"value_loss": minibatch["values"].sum()}, "value_loss", "'loss'"),
        (lambda minibatch: None, "None", "one number"),
        (lambda minibatch: minibatch["values"].sum().detach(), "without a gradient", "without detach"),
        (
            lambda minibatch, clip: minibatch["values"].sum(),
            "missing a required argument: 'clip'",
            "**settings",
        ),
        (lambda: torch.zeros(()), "too many positional arguments", "minibatch"),
    ],
)
def test_a_loss_that_cannot_be_used_is_named_with_the_remedy(
    function: Any, culprit: str, remedy: str
) -> None:
    with pytest.raises(UserError) as refused:
        Loss(function).differentiate({"values": torch.ones(2)}, ("values",), TorchBackend())
    assert f"{__name__}:<lambda>" in str(refused.value)
    assert culprit in str(refused.value)
    assert remedy in str(refused.value)


def test_an_error_within_a_loss_stays_what_it_is() -> None:
    def broken(minibatch: Any) -> Any:
        return len(3)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match=r"object of type 'int'"):
        Loss(broken).differentiate({"values": torch.ones(2)}, ("values",), TorchBackend())


def test_a_loss_that_is_no_function_is_refused_at_once() -> None:
    with pytest.raises(UserError, match=r"loss is 'huber'; use a function"):
        PPO("CartPole-v1", loss="huber")  # type: ignore[arg-type]


def test_a_method_with_self_is_refused_with_the_remedy() -> None:
    class Method(PPO):
        def loss(self, minibatch: Any, **settings: Any) -> Any:  # type: ignore[override]
            return mine(minibatch)

    with pytest.raises(UserError, match=r"Method\.loss.*@staticmethod def loss\(minibatch"):
        resolved(Method)


def test_an_algorithm_refuses_the_names_of_other_losses() -> None:
    with pytest.raises(UserError, match=r"unknown setting 'actor_loss'"):
        PPO("CartPole-v1", actor_loss=mine)  # type: ignore[call-arg]


SPEC = EnvSpec(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2), num_envs=2)
BOUNDED = EnvSpec(spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32), num_envs=2)
SPECS = dict.fromkeys(("ppo", "a2c", "dqn", "recurrent_ppo"), SPEC) | {"sac": BOUNDED, "td3": BOUNDED}


def path_of(algo: str, given: UserObjects | None = None, **settings: Any) -> str:
    config = TrainConfig(algo=algo, env_id="none", num_envs=2).with_overrides(**settings)
    return build_parts(config, SPECS[algo], given or UserObjects()).learner.update_path


@pytest.mark.parametrize("algo", SPECS)
def test_the_path_is_chosen_by_the_setting(algo: str) -> None:
    assert path_of(algo) == path_of(algo, update_path="explicit") == "explicit"
    assert path_of(algo, update_path="autograd") == "autograd"


@pytest.mark.parametrize("algo", SPECS)
def test_autograd_runs_nothing_that_is_hand_written(algo: str) -> None:
    config = TrainConfig(algo=algo, env_id="none", num_envs=2, update_path="autograd")
    learner: Any = build_parts(config, SPECS[algo]).learner
    losses = list(learner.losses.values()) if hasattr(learner, "losses") else [learner.objective.loss]
    assert all(loss.gradient is None for loss in losses)
    runs = vars(getattr(learner, "objective", learner)).values()
    assert not [part for part in runs if type(part).__module__ == "rl_training.models.fast.networks"]


@pytest.mark.parametrize(
    ("algo", "settings", "given", "culprit"),
    [
        ("ppo", {}, {"loss": mine}, f"loss {__name__}:mine has no hand-written gradient"),
        ("sac", {}, {"actor_loss": mine}, f"actor_loss {__name__}:mine has no hand-written gradient"),
        ("dqn", {"distribution": "c51"}, {}, "categorical_loss has no hand-written gradient"),
        ("dqn", {"noisy": True}, {}, "no hand-written backward pass for the network"),
    ],
)
def test_explicit_is_refused_where_it_is_impossible(
    algo: str, settings: dict[str, Any], given: dict[str, Any], culprit: str
) -> None:
    with pytest.raises(UserError) as refused:
        path_of(algo, UserObjects(losses=given), update_path="explicit", **settings)
    assert "update_path is 'explicit'" in str(refused.value)
    assert culprit in str(refused.value)
    assert "use update_path 'auto'" in str(refused.value)


def test_a_replaced_loss_leaves_the_network_explicit() -> None:
    assert path_of("ppo", UserObjects(losses={"loss": mine})) == "explicit, loss by autograd"
    found = path_of("sac", UserObjects(losses={"actor_loss": mine, "critic_loss": mine}))
    assert found == "explicit, critic_loss and actor_loss by autograd"


def test_a_gradient_of_its_own_keeps_everything_explicit() -> None:
    assert path_of("ppo", UserObjects(OwnBoth), update_path="explicit") == "explicit"


def test_a_loss_that_the_parent_does_not_have_is_refused() -> None:
    class Misnamed(PPO):
        critic_loss = staticmethod(mine)

    with pytest.raises(UserError, match=r"Misnamed defines critic_loss, but PPO has no loss.*use loss"):
        Misnamed("CartPole-v1")


def test_a_loss_of_a_temperature_that_is_fixed_is_refused(tmp_path: Path) -> None:
    model = SAC("Pendulum-v1", ent_coef=0.2, temperature_loss=mine, output_dir=str(tmp_path))
    with pytest.raises(UserError, match=r"temperature_loss is replaced, but ent_coef is fixed at 0\.2"):
        model.learn(32)


def test_a_loss_assigned_to_a_model_is_refused() -> None:
    model: Any = PPO("CartPole-v1")
    model.loss = mine
    with pytest.raises(UserError, match=r"loss was assigned to the model.*PPO\(\.\.\., loss=\.\.\.\)"):
        model.learn(32)


def test_a_class_is_known_by_every_name_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo, "Exported", Own, raising=False)
    assert is_called(Own, "rl_training.algorithms.ppo:Exported")
    assert not is_called(OwnBoth, "rl_training.algorithms.ppo:Exported")


def test_the_help_of_a_group_with_a_dot_in_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        print_help({"Outer.MyPPO": []}, "rl-training train", "Train.")
    assert "rl-training train" in capsys.readouterr().out


BUILT_IN = [
    PPO_LOSS,
    A2C_LOSS,
    Q_LOSSES["none"],
    *SAC_LOSSES.values(),
    *TD3_LOSSES.values(),
    BC_LOSS,
    *IQL_LOSSES.values(),
    *CQL_LOSSES.values(),
]


@pytest.mark.parametrize("loss", BUILT_IN, ids=lambda loss: loss.function.__name__)
def test_the_gradient_belongs_to_the_loss_beside_it(loss: Loss) -> None:
    """If you changed a loss, change its gradient, see that both agree, and write the new digest."""
    assert loss.of == source_digest(loss.function)


def test_who_edits_the_source_of_a_loss_gets_autograd_and_a_name_in_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolved_losses(PPO, PPOConfig(), {})["loss"].gradient is not None
    monkeypatch.setattr("rl_training.algorithms.losses.source_digest", lambda function: "edited")
    for given in ({}, {"loss": PPO_LOSS.function}):
        losses = resolved_losses(PPO, PPOConfig(), given)
        assert losses["loss"].gradient is None
        assert replaced_losses(PPO, PPOConfig(), losses) == {
            "loss": "rl_training.algorithms.ppo:ppo_loss#edited"
        }


def test_comments_and_docstrings_are_no_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for number, text in enumerate(("return x", '"""Say so."""\n    return x  # so', "return 2 * x")):
        (tmp_path / f"edited_{number}.py").write_text(f"def f(x):\n    {text}\n")
        monkeypatch.syspath_prepend(tmp_path)
        digests.append(source_digest(importlib.import_module(f"edited_{number}").f))
    assert digests[0] == digests[1] != digests[2]
