"""Settings given to `resume`: what can be changed, and how to change the rest, in one sentence."""

import pytest

from rl_training.experiment.start import train


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        (["--learning-rate", "1e-4"], "train --start-from RUN --learning-rate ..."),
        (["--learning-rate=1e-4"], "train --start-from RUN --learning-rate ..."),
        (["--lr", "1e-4"], "train --start-from RUN --learning-rate ..."),
        (["--num-envs", "4"], "train --start-from RUN --num-envs ..."),
        (["--no-normalize-obs"], "train --start-from RUN --normalize-obs ..."),
        (["--buffer-size", "4"], "train --start-from RUN --buffer-size ..."),
        (["--env-wrappers", "a:B"], "train --start-from RUN --env-wrappers ..."),
    ],
)
def test_a_setting_is_answered_with_what_to_do(tiny, cli, flags, remedy):
    run_dir = train(tiny()).run_dir
    outcome = cli("resume", run_dir, *flags)
    assert outcome.code == 2
    assert f"so {flags[0].partition('=')[0]} cannot be changed" in outcome.sentence
    assert "only --total-timesteps, --total-updates, --max-time, --engine, --num-samplers" in outcome.sentence
    assert remedy in outcome.sentence


def test_what_is_no_setting_is_an_unknown_flag(cli):
    assert "unknown flag '--spped'" in cli("resume", "RUN", "--spped", 3).sentence


def test_the_help_says_it(cli):
    text = " ".join(cli("resume", "--help").out.replace("│", " ").split())
    assert "Only its length, and the processes and machines that it uses, can be changed" in text
    assert "train --start-from RUN" in text


def test_what_can_be_changed_still_can(tiny, cli):
    run_dir = train(tiny()).run_dir
    outcome = cli("resume", run_dir, "--total-timesteps", 96, "--max-time", 60, "--quiet")
    assert outcome.code == 0, outcome.err
