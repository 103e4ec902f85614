from rl_training.core.errors import ConfigError, did_you_mean, reason


def test_one_problem_is_one_sentence_and_several_are_a_list() -> None:
    assert str(ConfigError(["seed is -1"], "a.yaml")) == "a.yaml: seed is -1"
    several = ConfigError(["seed is -1", "gamma is 2"], "a.yaml")
    assert several.problems == ["seed is -1", "gamma is 2"]
    assert str(several) == "a.yaml:\n  - seed is -1\n  - gamma is 2"


def test_the_nearest_known_name_is_suggested_and_a_far_one_is_not() -> None:
    assert did_you_mean("learning_rte", ["gamma", "learning_rate"]) == "; did you mean 'learning_rate'?"
    assert did_you_mean("zzz", ["gamma", "learning_rate"]) == ""


def test_an_error_without_a_word_is_told_by_the_line_that_raised_it() -> None:
    assert reason(RuntimeError("motor burnt")) == "motor burnt"
    assert reason(RuntimeError()) == "no message"
    wheels = 3
    try:
        assert wheels == 4
    except AssertionError as error:
        error.args = ()  # as outside of tests
        told = reason(error)
    assert told.startswith("no message; raised by 'assert wheels == 4' in ")
    assert "unit/core/test_errors.py, line " in told
