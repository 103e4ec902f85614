"""The record of a job holds what its report needs, without the run."""

import json

import pytest

from rl_training.lab.jobs import Job, ended_record, scored_job
from support.configs import tiny_config


@pytest.mark.parametrize(("clock", "unit"), [("timesteps", "steps"), ("updates", "updates")])
def test_a_record_says_what_its_run_counts(tmp_path, clock, unit):
    facts = {"algo": "bc", "env_id": "Walk-v0", "seed": 1, "status": "finished"}
    (tmp_path / "metadata.json").write_text(json.dumps(facts), encoding="utf-8")
    row = {clock: 50, "mean_reward": 1.5, "returns": []}
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    record = ended_record(Job("tiny", tiny_config("ppo", "unused")), tmp_path)
    scored = scored_job(record, "Walk", "bc")
    assert (scored.unit, scored.evaluations[-1].step) == (unit, 50)
    del record["unit"]  # as earlier versions wrote it
    assert scored_job(record, "Walk", "bc").unit == "steps"
