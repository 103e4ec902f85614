"""What a person sees before the first log row, and between two of them."""

import io

import pytest

from rl_training.experiment.console import PlainConsole, RichConsole
from rl_training.experiment.start import train


class Shown(RichConsole):
    """Keeps what the table was told."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log(self, metrics: dict[str, float], timesteps: int) -> None:
        super().log(metrics, timesteps)
        self._shown = 0.0  # as if a second had passed
        self.rows.append((timesteps, metrics))


@pytest.mark.parametrize("algo", ["dqn", "sac"])
def test_lines_come_before_the_first_row(tiny, algo):
    config = tiny(algo, log_every_timesteps=100_000, learning_starts=1_000, total_timesteps=420)
    stream = io.StringIO()
    train(config, console=PlainConsole(stream, seconds_between_lines=0.0))
    lines = [line for line in stream.getvalue().splitlines() if " / 420 steps" in line]
    assert len(lines) > 5
    assert int(lines[0].split()[0]) <= 4, "the first steps"
    assert "/s" in lines[0]
    assert "return" not in lines[0], "no episode has ended yet"
    assert "return" in lines[-2]
    assert "evaluation" in lines[-1]
    assert [line for line in lines if "    420 /" in line] == lines[-1:], "the end has one line"


def test_lines_are_seconds_apart(tiny):
    stream = io.StringIO()
    train(tiny("dqn", log_every_timesteps=100_000), console=PlainConsole(stream, seconds_between_lines=600.0))
    assert len([line for line in stream.getvalue().splitlines() if " steps" in line]) == 1


def test_the_table_is_filled_before_the_first_row(tiny):
    console = Shown()
    train(tiny("dqn", log_every_timesteps=100_000, total_timesteps=64), console=console)
    first, second = console.rows[0], console.rows[10]
    assert first[0] == 4
    assert set(first[1]) == {"time/fps"}
    assert second[1]["rollout/ep_len_mean"] == 8.0
    assert second[1]["time/fps"] > 0


def test_a_notice_shows_quoted_text_as_it_is(capsys):
    stream = io.StringIO()
    PlainConsole(stream).notice("a\x1b[31m loss")
    RichConsole().notice("[bold]loss[/bold]\x1b[31m")
    assert "\x1b" not in stream.getvalue()
    shown = capsys.readouterr().out
    assert "[bold]loss[/bold]" in shown
    assert "\x1b" not in shown
