import pytest

from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.learner import BaseLearner
from rl_training.experiment.checkpoints import snapshot
from rl_training.experiment.start import train


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_checkpoint_gathers_the_state_of_the_learner_once(algo, tiny, monkeypatch):
    gathered, written = [], []
    state_dict, write = BaseLearner.state_dict, snapshot.write_checkpoint

    def counted(self):
        gathered.append(self)
        return state_dict(self)

    def counted_write(*arguments, **settings):
        written.append(arguments)
        return write(*arguments, **settings)

    monkeypatch.setattr(BaseLearner, "state_dict", counted)
    monkeypatch.setattr(snapshot, "write_checkpoint", counted_write)
    train(tiny(algo, checkpoint_every_timesteps=32))
    assert len(gathered) == len(written) > 2
