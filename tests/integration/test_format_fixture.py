"""The first checkpoint format keeps loading for ever: a run that was written with it lies under tests/fixtures."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

import rl_training
from rl_training.experiment.start import resume

FIXTURE = Path(__file__).parents[1] / "fixtures" / "checkpoint_format_1"
EXPECTED = json.loads((FIXTURE / "expected.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["", "best", "checkpoints/step_512"])
def test_format_1_loads_and_acts_as_it_did(name: str) -> None:
    agent = rl_training.load(FIXTURE / "run" / name).agent
    obs = np.array(EXPECTED["observations"], np.float32)
    assert agent.timesteps == EXPECTED["timesteps"]
    assert agent.predict(obs).tolist() == EXPECTED["actions"]
    np.testing.assert_allclose(agent.policy.values(obs), EXPECTED["values"], rtol=1e-5)  # type: ignore[attr-defined]
    assert len(set(EXPECTED["actions"])) == 2, "one action for everything would prove little"


def test_format_1_resumes(tmp_path: Path) -> None:
    shutil.copytree(FIXTURE / "run", tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the versions and the processor may be others by now
        result = resume(tmp_path / "run", total_timesteps=640)
    assert result.metrics["global_step"] == 640
    assert result.metrics["updates"] == 5


def test_format_1_whose_extension_is_killed_at_once_still_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget is written into the checkpoint before any environment is built: its spaces are still names."""

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    run_dir = Path(shutil.copytree(FIXTURE / "run", tmp_path / "run"))
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr("rl_training.experiment.start._environments", killed)
        with pytest.raises(Killed):
            resume(run_dir, total_timesteps=640)
    model = rl_training.load(run_dir)
    assert model.config.total_timesteps == 640
    assert model.predict(np.array(EXPECTED["observations"], np.float32))[0].tolist() == EXPECTED["actions"]
    model.save(tmp_path / "agent")
    monkeypatch.setattr("gymnasium.make", killed)
    again = rl_training.load(tmp_path / "agent")
    assert again.predict(np.array(EXPECTED["observations"], np.float32))[0].tolist() == EXPECTED["actions"]
