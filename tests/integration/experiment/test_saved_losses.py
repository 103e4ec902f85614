"""A checkpoint names the losses that trained it, and nothing goes on training without them."""

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl_training
from rl_training import PPO, SAC
from rl_training.algorithms import ppo
from rl_training.algorithms.ppo import ppo_loss
from rl_training.cli import main
from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints.format import _checked_losses
from rl_training.experiment.checkpoints.saved_losses import compare_losses, refuse_other_losses
from rl_training.experiment.resume import resume
from rl_training.runtime.callbacks import Callback, PauseTraining

SETTINGS: dict[str, Any] = {
    "num_envs": 2, "num_steps": 16, "batch_size": 16, "update_epochs": 1, "hidden_sizes": (8,), "seed": 1,
    "num_eval_episodes": 1, "max_episode_steps": 20, "num_threads": 1,
}  # fmt: skip
NAME = f"{__name__}:doubled"


def doubled(minibatch: Any, **settings: Any) -> Any:
    parts = ppo_loss(minibatch, **settings)
    return parts | {"loss": 2 * parts["loss"]}


def tripled(minibatch: Any, **settings: Any) -> Any:
    parts = ppo_loss(minibatch, **settings)
    return parts | {"loss": 3 * parts["loss"]}


class Doubled(PPO):
    """PPO with a loss of its own."""

    loss = staticmethod(doubled)


class Pause(Callback):
    """Pauses the run half way."""

    def on_update(self, progress: Any, result: Any) -> None:
        if progress.timesteps == 64:
            raise PauseTraining("half way")


def make(folder: Path, algorithm: type[PPO] = PPO, **extra: Any) -> PPO:
    return algorithm("CartPole-v1", output_dir=str(folder), **SETTINGS | extra)


def paused(folder: Path, algorithm: type[PPO] = PPO, **extra: Any) -> Path:
    """Return the folder of a run that paused half way."""
    run_dir = make(folder, algorithm, **extra).learn(128, callbacks=[Pause()]).run_dir
    assert run_dir is not None
    return run_dir


def weights(path: Any) -> torch.Tensor:
    policy: Any = rl_training.load(path, trust_modules=True).policy
    return torch.cat([part.detach().reshape(-1) for part in policy.parameters()])


def test_the_manifest_and_the_metadata_name_a_replaced_loss(tmp_path: Path) -> None:
    run_dir = paused(tmp_path, loss=doubled)
    manifest = json.loads(next(run_dir.glob("checkpoints/step_64/manifest.json")).read_text("utf-8"))
    metadata = json.loads((run_dir / "metadata.json").read_text("utf-8"))
    assert manifest["facts"]["losses"] == {"loss": NAME}
    assert metadata["losses"] == {"loss": NAME}
    assert metadata["update_path"] == "explicit, loss by autograd"


def test_a_replaced_loss_and_the_update_path_are_shown_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, loss=doubled).learn(32, progress=True)
    shown = capsys.readouterr().out
    assert f"note: {NAME} replaces the built-in loss" in shown
    assert "update path 'explicit, loss by autograd'" in shown
    make(tmp_path, update_path="autograd").learn(32, progress=True)
    assert "update path 'autograd'" in capsys.readouterr().out
    make(tmp_path).learn(32, progress=True)
    assert "update path" not in capsys.readouterr().out


def test_the_manifest_of_other_runs_names_none(tmp_path: Path) -> None:
    run_dir = paused(tmp_path, loss=ppo_loss)  # the built-in one, given by hand
    manifest = json.loads(next(run_dir.glob("checkpoints/step_64/manifest.json")).read_text("utf-8"))
    metadata = json.loads((run_dir / "metadata.json").read_text("utf-8"))
    assert manifest["facts"]["losses"] == {}
    assert "losses" not in metadata
    assert metadata["update_path"] == "explicit"


def test_resume_without_the_loss_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    run_dir = paused(tmp_path, loss=doubled)
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=f"{NAME}.*loss=doubled") as refused:
        resume(run_dir)
    assert "algorithm class" in str(refused.value)
    after = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    assert {path.name for path in after if after[path] != before.get(path)} <= {".lock"}


def test_the_command_line_refuses_to_resume_without_the_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = paused(tmp_path, loss=doubled)
    assert main(["resume", str(run_dir)]) == 2
    assert NAME in capsys.readouterr().err


@pytest.mark.parametrize("way", ["argument", "class"])
def test_resume_with_the_loss_gives_the_bytes_of_an_uninterrupted_run(tmp_path: Path, way: str) -> None:
    given: dict[str, Any] = {"loss": doubled} if way == "argument" else {}
    algorithm = PPO if way == "argument" else Doubled
    run_dir = paused(tmp_path / "paused", algorithm, **given)
    result = resume(run_dir, algorithm=algorithm, losses=given)
    whole = make(tmp_path / "whole", algorithm, **given).learn(128)
    plain = make(tmp_path / "plain").learn(128)
    assert result.metrics["global_step"] == 128
    assert torch.equal(weights(run_dir), weights(whole.run_dir))
    assert not torch.equal(weights(run_dir), weights(plain.run_dir))


def test_resume_with_another_loss_is_refused(tmp_path: Path) -> None:
    run_dir = paused(tmp_path, loss=doubled)
    with pytest.raises(UserError, match=r"doubled.*tripled"):
        resume(run_dir, losses={"loss": tripled})


def test_resume_of_a_built_in_loss_with_a_replaced_one_is_refused(tmp_path: Path) -> None:
    run_dir = paused(tmp_path)
    with pytest.raises(UserError, match=r"built-in loss.*tripled.*start_from"):
        resume(run_dir, losses={"loss": tripled})


def test_a_run_killed_before_its_first_checkpoint_needs_its_loss_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_training.experiment.run.Run.execute", lambda *_, **__: sys.exit("killed"))
    with pytest.raises(SystemExit):
        make(tmp_path, loss=doubled).learn(64)
    monkeypatch.undo()
    (run_dir,) = tmp_path.iterdir()
    with pytest.raises(UserError, match=NAME):
        resume(run_dir)
    assert resume(run_dir, losses={"loss": doubled}).metrics["global_step"] == 64


def test_a_loaded_agent_predicts_without_the_loss_and_learns_only_with_it(tmp_path: Path) -> None:
    make(tmp_path, loss=doubled).learn(64).save(tmp_path / "agent")
    model = PPO.load(tmp_path / "agent")
    model.predict([0.0, 0.0, 0.0, 0.0])
    model.evaluate(1)
    with pytest.raises(UserError, match=f"{NAME}.*loss=doubled"):
        model.learn(32)
    with pytest.raises(UserError, match=NAME):
        PPO.load(tmp_path / "agent", loss=tripled).learn(32)
    PPO.load(tmp_path / "agent", loss=doubled).learn(32)
    rl_training.load(tmp_path / "agent", loss=doubled).learn(32)
    Doubled.load(tmp_path / "agent").learn(32)


def test_copies_of_a_loaded_agent_keep_the_name_of_its_loss(tmp_path: Path) -> None:
    make(tmp_path, loss=doubled).learn(64).save(tmp_path / "agent")
    PPO.load(tmp_path / "agent").save(tmp_path / "copy")
    for model in (PPO.load(tmp_path / "copy"), pickle.loads(pickle.dumps(PPO.load(tmp_path / "agent")))):
        with pytest.raises(UserError, match=NAME):
            model.learn(32)


def test_a_pickled_model_keeps_its_loss(tmp_path: Path) -> None:
    model = pickle.loads(pickle.dumps(make(tmp_path, loss=doubled)))
    assert "loss by autograd" in (model.learn(64).run_dir / "metadata.json").read_text("utf-8")


def test_a_model_with_a_lambda_as_its_loss_cannot_be_pickled(tmp_path: Path) -> None:
    model = make(tmp_path, loss=lambda minibatch, **settings: ppo_loss(minibatch, **settings))
    with pytest.raises(UserError, match=r"loss is a lambda"):
        pickle.dumps(model)


def test_learning_on_without_a_patch_that_is_gone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(tmp_path)
    monkeypatch.setattr(ppo, "ppo_loss", doubled)
    model.learn(64)
    monkeypatch.undo()
    with pytest.raises(UserError, match=NAME):
        model.learn(64)


def test_weights_may_be_fine_tuned_with_any_loss_and_a_notice_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, loss=doubled).learn(64).save(tmp_path / "agent")
    for given in ({}, {"loss": tripled}):
        model = PPO.start_from(tmp_path / "agent", **given).learn(64, progress=True)
        assert NAME in capsys.readouterr().out
        saved = json.loads((Path(str(model.run_dir)) / "metadata.json").read_text("utf-8"))
        assert saved.get("losses", {}) == ({"loss": f"{__name__}:tripled"} if given else {})


def test_a_learner_that_does_not_read_the_loss_is_refused(tmp_path: Path) -> None:
    class Deaf(PPO):
        @staticmethod
        def build_learner(settings: Any, context: Any, actor: Any) -> Any:
            return ppo.PPOLearner(settings, actor, minibatch_rng=np.random.default_rng(0))

    with pytest.raises(UserError, match=r"Deaf.*does not use.*doubled.*context\.loss"):
        make(tmp_path, Deaf, loss=doubled).learn(64)


def test_a_gradient_of_ones_own_is_named_too(tmp_path: Path) -> None:
    def by_hand(minibatch: Any, **settings: Any) -> Any:
        return ppo.ppo_gradient(minibatch, **settings)

    class Own(PPO):
        loss_gradient = staticmethod(by_hand)

    run_dir = Path(str(make(tmp_path, Own).learn(64).run_dir))
    metadata = json.loads((run_dir / "metadata.json").read_text("utf-8"))
    assert metadata["update_path"] == "explicit"
    assert metadata["losses"] == {"loss_gradient": f"{__name__}:{by_hand.__qualname__}"}


def test_one_replaced_loss_of_several_is_named(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"learning_starts": 8, "batch_size": 8, "hidden_sizes": (8,), "num_envs": 1}
    settings |= {name: SETTINGS[name] for name in ("num_eval_episodes", "max_episode_steps")}

    def calm(minibatch: Any) -> Any:
        return 0.5 * SAC.critic_loss(minibatch)

    model = SAC("Pendulum-v1", output_dir=str(tmp_path), critic_loss=calm, **settings).learn(16)
    metadata = json.loads((Path(str(model.run_dir)) / "metadata.json").read_text("utf-8"))
    assert metadata["losses"].keys() == {"critic_loss"}
    assert metadata["update_path"] == "explicit, critic_loss by autograd"


def test_a_loss_of_a_script_may_be_given_from_its_module() -> None:
    refuse_other_losses("RUN", {"loss": "__main__:doubled"}, {"loss": NAME})
    with pytest.raises(UserError, match="was trained with"):
        refuse_other_losses("RUN", {"loss": "elsewhere:doubled"}, {"loss": NAME})


@pytest.mark.parametrize(
    ("name", "function", "remedy"),
    [
        ("loss", "mine:f", "pass loss=f, or"),
        ("loss", "mine:<lambda>", "pass mine:<lambda> as loss, or"),
        ("loss", "mine:Losses.huber", "pass mine:Losses.huber as loss, or"),
        ("loss_gradient", "mine:g", "use the algorithm class that has mine:g as its loss_gradient"),
    ],
)
def test_the_remedy_is_possible(name: str, function: str, remedy: str) -> None:
    with pytest.raises(UserError) as refused:
        refuse_other_losses("RUN", {name: function}, {})
    assert remedy in str(refused.value)


def test_learning_on_with_one_saved_loss_may_replace_another() -> None:
    from types import SimpleNamespace

    told: list[str] = []
    source: Any = SimpleNamespace(path="RUN", losses={"critic_loss": "mine:c"})
    given: Any = SimpleNamespace(loss_names=lambda config: {"critic_loss": "mine:c", "actor_loss": "mine:a"})
    config: Any = None
    compare_losses(config, given, source, None, told.append)
    assert told == ["RUN was trained with the built-in actor_loss; this run trains with mine:a"]


def test_the_name_of_a_strangers_loss_is_bounded() -> None:
    for name in ("x" * 201, "a:\x1b[31m"):
        with pytest.raises(ValueError, match="printable characters"):
            _checked_losses({"loss": name})
