"""Wrong flags: one sentence that names the culprit and the remedy, the same for every command."""

import pytest

COMMANDS = {
    "rl-training train ppo": ("train", "ppo", "--env-id", "X"),
    "rl-training zoo run": ("zoo", "run", "ppo/cartpole"),
    "rl-training runs list": ("runs", "list", "."),
}

SEEDS = "use a number from 1 to 10,000, or a range such as 21-25"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refused(cli, *words):
    outcome = cli(*words)
    assert outcome.code == 2
    return outcome.sentence.removeprefix("error: ")


@pytest.mark.parametrize("prog", COMMANDS)
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--zzzz"], "unknown flag '--zzzz'; {prog} --help lists all flags"),
        (["-z"], "unknown flag '-z'; {prog} --help lists all flags"),
        (["--zzzz=3"], "unknown flag '--zzzz'; {prog} --help lists all flags"),
    ],
)
def test_flags_that_there_are_not(cli, prog, words, sentence):
    assert refused(cli, *COMMANDS[prog], *words) == sentence.format(prog=prog)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("zoo", "run", "x", "--sed", 3), "unknown flag '--sed'; did you mean '--seeds'?"),
        (("runs", "list", "--sed", 3), "unknown flag '--sed'; did you mean '--seed'?"),
        (("zoo", "run", "--sed", 3), "unknown flag '--sed'; did you mean '--seeds'?"),
        (("train", "ppo", "--sed", 3), "unknown flag '--sed'; did you mean '--seed'?"),
        (("runs", "list", "--jsn", "--sot", "age"), "unknown flag '--jsn'; did you mean '--json'?"),
        (("train", "ppo", "--n_envs", 3), "unknown flag '--n_envs'; here it is called '--num-envs'"),
        (("runs", "list", "--env"), "--env needs a value; rl-training runs list --help lists all flags"),
        (
            ("train", "ppo", "--env-id", "x", "--hidden-sizes", "a", "b"),
            "--hidden-sizes is 'a b'; use a whole number such as 5000",
        ),
        (
            ("zoo", "run", "x", "--seeds", "9" * 5000),
            f"--seeds is '{'9' * 60}…'; {SEEDS}",
        ),
        (("zoo", "run", "x", "--seeds"), "--seeds needs a value; rl-training zoo run --help lists all flags"),
        (("runs", "list", "--seed"), "--seed needs a value; rl-training runs list --help lists all flags"),
        (
            ("zoo", "run", "x", "--seeds", "five"),
            f"--seeds is 'five'; {SEEDS}",
        ),
        (
            ("runs", "list", "--seed", "five"),
            "--seed is 'five'; use a whole number such as 5000",
        ),
        (
            ("zoo", "run", "x", "--retry-failed=3"),
            "--retry-failed takes no value, but got '3'; rl-training zoo run --help lists all flags",
        ),
        (
            ("runs", "list", "--sort", "colour"),
            "--sort is 'colour'; use one of age, name, algo, env, seed, status, step, score, best",
        ),
        (
            ("benchmark",),
            "rl-training benchmark needs a manifest; rl-training benchmark --help lists all flags",
        ),
        (("zoo", "run"), "rl-training zoo run needs a preset; rl-training zoo run --help lists all flags"),
        (
            ("eval",),
            "rl-training eval needs a run; rl-training eval --help lists all flags",
        ),
        (
            ("train", "ppo"),
            "rl-training train ppo needs --env-id; rl-training train ppo --help lists all flags",
        ),
        (
            ("train", "sac"),
            "rl-training train sac needs --env-id or --dataset; rl-training train sac --help lists all flags",
        ),
        (
            ("benchmark", "classic", "x"),
            "'x' is one word too many; rl-training benchmark --help lists all flags",
        ),
        (("eval", "a", "x"), "'x' is one word too many; rl-training eval --help lists all flags"),
    ],
)
def test_one_sentence_with_the_culprit_and_the_remedy(cli, words, sentence):
    assert refused(cli, *words) == sentence


def test_show_takes_one_run(cli):
    assert refused(cli, "runs", "show", "a", "b") == (
        "runs show takes one run, and 2 are given; rl-training runs diff a b compares them"
    )
    assert "runs show needs a run: rl-training runs show runs/RUN" in refused(cli, "runs", "show")


def test_a_schedule_as_learning_rate_is_named(cli):
    outcome = cli("train", "ppo", "--env-id", "CartPole-v1", "--learning-rate", "my_module:decay")
    assert outcome.code == 2
    assert "--learning-rate is 'my_module:decay'" in outcome.err
    assert "learning_rate_schedule" in outcome.err
