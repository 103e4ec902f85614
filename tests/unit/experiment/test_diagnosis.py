"""What went wrong in a run, from its rows: every rule, and silence about good runs."""

import json
import re

import pytest

from loading import ROOT
from rl_training.experiment.diagnosis import PAGE, diagnose, summary
from rl_training.experiment.start import train


def rows_of(returns, **columns):
    """Rows with these returns; other columns are numbers, or lists of them."""
    rows = []
    for number, mean in enumerate(returns):
        row = {"time/total_timesteps": 1000.0 * (number + 1), "time/episodes": 50.0 * (number + 1)}
        row |= {} if mean is None else {"rollout/ep_rew_mean": mean}
        for name, values in columns.items():
            row[f"train/{name}"] = values[number] if isinstance(values, list) else values
        rows.append(row)
    return rows


def evaluations_of(*means, std=5.0):
    return [
        {"timesteps": 1000 * (number + 1), "mean_reward": mean, "std_reward": std}
        for number, mean in enumerate(means)
    ]


STUCK = [22.0, 21.0, 23.0, 22.5, 21.5, 22.9]
RISING = [22.0, 30.0, 60.0, 110.0, 180.0, 240.0]


def sections(*arguments, **options):
    return [finding.section for finding in diagnose(*arguments, **options)]


class TestWhatWentWrong:
    @pytest.mark.parametrize("scale", [1.0, -1.0, 0.0])
    def test_a_return_that_does_not_rise(self, scale):
        returns = [scale * 20.0] * 6
        (finding,) = diagnose(rows_of(returns), evaluations_of(scale * 20.0, scale * 20.5 - abs(scale)))
        assert finding.section == "the-return-does-not-rise"
        assert f"({scale * 20:.4g} at first, " in finding.text

    def test_a_return_that_only_falls(self):
        """As DQN's on CartPole, if it is trained for too short."""
        returns = [22.4, 18.0, 16.9, 16.2, 16.2, 16.2]
        (finding,) = diagnose(rows_of(returns), evaluations_of(9.4, 9.6, std=0.5))
        assert finding.text == "the return did not rise (22.4 at first, 16.2 later)"

    def test_a_return_that_falls_again(self):
        (finding,) = diagnose(rows_of(RISING), evaluations_of(100.0, 480.0, 60.0))
        assert finding.section == "the-return-falls-again"
        assert "fell from 480 to 60; checkpoints/best has the better agent" in finding.text

    def test_no_episode_that_ends(self):
        rows = [row | {"time/episodes": 0.0} for row in rows_of([None] * 6)]
        (evaluation,) = evaluations_of(3.0)
        capped = evaluation | {"num_episodes": 5, "num_capped_episodes": 5}
        assert sections(rows, [evaluation, capped]) == ["no-episode-ends"]
        assert sections(rows, [capped | {"num_capped_episodes": 4}]) == [], "an episode is only long"
        offline = [{"time/iterations": 1.0, "time/episodes": 0.0}] * 6
        assert sections(offline, [capped]) == []

    @pytest.mark.parametrize(
        ("columns", "section"),
        [
            ({"entropy_loss": [-0.69, -0.3, -0.1, -0.02, -0.01, -0.001]}, "the-entropy-vanishes"),
            ({"approx_kl": 0.4}, "updates-are-too-large"),
            (
                {"explained_variance": [0.5, 0.1, -0.1, -0.3, -0.2, -0.2]},
                "the-value-function-explains-nothing",
            ),
            ({"critic_loss": [0.1, 1.0, 10.0, 100.0, 1e3, 1e4]}, "the-critic-diverges"),
        ],
    )
    def test_reasons_are_named_only_if_the_run_did_badly(self, columns, section):
        assert sections(rows_of(STUCK, **columns), []) == ["the-return-does-not-rise", section]
        assert sections(rows_of(RISING, **columns), evaluations_of(100.0, 300.0)) == []

    def test_the_line_names_all_and_a_section(self):
        rows = rows_of(STUCK, approx_kl=0.4, explained_variance=-0.5)
        assert summary(diagnose(rows, [])) == (
            "This run did badly: the return did not rise (22 at first, 22.5 later); possible reasons: a usual update "
            "changed the policy by a KL of 0.4, the value function explained nothing of the returns (explained "
            "variance -0.5). "
            "See docs/troubleshooting.md#the-return-does-not-rise"
        )


class TestSilence:
    @pytest.mark.parametrize(
        ("returns", "means"),
        [
            (RISING, [150.0, 470.0, 496.0, 283.0]),  # PPO on CartPole
            (
                [-1400.0, -1390.0, -1342.0, -900.0, -500.0, -300.0],
                [-1300.0, -631.0, -150.0],
            ),  # SAC on Pendulum
            (
                [-1400.0, -1395.0, -1390.0, -1380.0, -1370.0, -1342.0],
                [-1300.0, -900.0, -631.0],
            ),  # it has just begun
            ([-180.0, -160.0, -120.0, -60.0, 20.0, 110.0], [-150.0, -20.0, 190.0]),  # LunarLander
            ([0.0, 0.0, 0.02, 0.1, 0.4, 0.8], [0.0, 0.1, 0.9]),  # a rare reward
            ([450.0, 460.0, 470.0, 480.0, 490.0, 495.0], []),
        ],
    )
    def test_a_good_run(self, returns, means):
        rows = rows_of(returns, entropy_loss=-0.5, approx_kl=0.01, explained_variance=0.6)
        assert diagnose(rows, evaluations_of(*means, std=40.0)) == []

    def test_a_run_that_is_too_short_to_tell(self):
        assert diagnose([], []) == []
        assert diagnose(rows_of(STUCK)[:3], []) == []
        few = [row | {"time/episodes": 19.0} for row in rows_of(STUCK)]
        assert diagnose(few, []) == []

    def test_an_agent_that_was_good_at_the_start(self):
        assert diagnose(rows_of([500.0] * 6), evaluations_of(500.0, 500.0), fine_tuned=True) == []

    def test_a_last_evaluation_that_is_good_enough(self):
        """As where `stop_at_reward` ends the run, or where the task is so easy that the first row is at its best."""
        assert diagnose(rows_of(STUCK), evaluations_of(20.0, 21.0, 20.0, 21.0, 20.0, 400.0)) == []
        easy = rows_of([480.0] * 6), evaluations_of(490.0, 490.0)
        assert sections(*easy) == ["the-return-does-not-rise"]
        assert sections(*easy, good_return=500.0) == ["the-return-does-not-rise"]
        assert sections(*easy, good_return=475.0) == []

    def test_rows_with_damaged_numbers(self):
        """None of these may raise: the run itself has ended well."""
        for wrong in (None, "many", True, 10**400, float("nan")):
            rows = [row | {"time/episodes": wrong, "train/critic_loss": wrong} for row in rows_of(STUCK)]
            assert diagnose(rows, evaluations_of(100.0, 20.0)) == []
            (best, last) = evaluations_of(480.0, 60.0)
            found = sections(rows_of(RISING), [best | {"std_reward": wrong}, last])
            assert found == ["the-return-falls-again"]
            assert sections(rows_of(RISING), [best, last | {"mean_reward": wrong}]) == []

    def test_learning_from_data_without_episodes(self):
        rows = [{"time/total_updates": float(number), "train/loss": 1.0} for number in range(6)]
        assert diagnose(rows, []) == []

    @pytest.mark.slow
    def test_a_real_run_of_ppo_on_cartpole(self, tiny):
        settings = {
            "num_steps": 32,
            "batch_size": 256,
            "num_envs": 8,
            "hidden_sizes": (64, 64),
            "log_every_timesteps": 1024,
        }
        run_dir = train(
            tiny("ppo", env_id="CartPole-v1", total_timesteps=10_240, learning_rate=1e-3, **settings)
        ).run_dir
        lines = (run_dir / "metrics.jsonl").read_text().splitlines()
        assert diagnose([json.loads(line) for line in lines], []) == []


def test_every_section_exists():
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    written = {line[3:].lower().replace(" ", "-") for line in page.splitlines() if line.startswith("## ")}
    source = (ROOT / "src/rl_training/experiment/diagnosis.py").read_text(encoding="utf-8")
    named = set(re.findall(r'Finding\(\s*"([a-z-]+)"', source))
    assert len(named) == 7
    assert named == written
