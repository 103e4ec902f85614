"""Processes that compute shards of rollouts whose number of rows differs: the same weights as in one process."""

import sys

import pytest
import torch

from rl_training.core.types import Progress
from rl_training.experiment.building import NO_OBJECTS, build_parts
from rl_training.experiment.learner_ranks import ranks
from rl_training.experiment.learner_ranks.ranks import RankedLearner, sharded_learner
from rl_training.runtime.sampler import LocalSampler
from support.configs import tiny_config
from support.turns import Duels

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are tested on Linux")
PROGRESS = Progress(total_timesteps=1000)


@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo"])
def test_ranks_learn_from_any_number_of_rows(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "START_WAIT", 60.0)
    monkeypatch.setattr(ranks, "usable_cores", lambda: 2)
    config = tiny_config(algo, "unused", learner_shards=2, env_id="Duels")
    weights, sizes = [], set[int]()
    for engine in ("local", "process"):
        duels = Duels(3, deaths=True)
        config = config.with_overrides(engine=engine)
        parts = build_parts(config, duels.spec)
        sampler = LocalSampler(duels, parts.actor.explorer, parts.source)
        with sharded_learner(config, duels.spec, NO_OBJECTS, parts.learner, parts.learner) as learner:
            for _ in range(4):
                sampler.collect(parts.source.steps_per_collect, PROGRESS)
                for batch in parts.source.batches(PROGRESS):
                    sizes.add(len(batch) if batch.valid is None else int(batch.valid.sum()))
                    learner.update(batch, PROGRESS)
            assert isinstance(learner, RankedLearner) == (engine == "process")
            if isinstance(learner, RankedLearner):
                assert learner.helped == 4
        weights.append(torch.cat([part.detach().flatten() for part in parts.actor.policy.parameters()]))
    assert torch.equal(*weights)
    assert len(sizes) > 1
