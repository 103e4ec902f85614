"""Several rows may belong to one environment: its episode is over when the episodes of all its agents are."""

from typing import Any

import numpy as np
from gymnasium import spaces
from records import step_arrays

from rl_training.core.rows import Rows
from rl_training.core.types import ActArrays, EnvSpec, Progress
from rl_training.runtime.episodes import RunningEpisodes
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.sampler import LocalSampler

GAMES = Rows(envs=[0, 1, 0, 1], agents=[0, 0, 1, 1])
"""Two games of two agents each, agent-major."""


class TwoAgentGames:
    """Agent 0 of each game dies after 2 steps and is absent from then on; agent 1 ends the game after 3 or 5 steps.

    Agent 0 is paid 1 per step and agent 1 is paid 10.
    """

    rows = GAMES
    resumable = True

    def __init__(self) -> None:
        self.spec = EnvSpec(spaces.Box(0, 9, (1,)), spaces.Discrete(2), 4)
        self.out = step_arrays(np.zeros((4, 1), np.float32), np.zeros(4))
        self.notices: list[str] = []
        self.count = np.zeros(2, np.int64)
        self.restarted: list[list[bool]] = []

    def reset(self) -> None:
        self.count[:] = 0
        self.out.obs[:] = 0.0  # type: ignore[index]

    def restart(self, envs: Any) -> None:
        self.restarted.append(envs.tolist())
        self.count[envs] = 0

    def step(self, action: Any) -> None:
        self.count += 1
        count, out = self.count, self.out
        present = np.concatenate([count <= 2, [True, True]])
        out.valid[:] = present
        out.reward[:] = np.where(present, [1.0, 1.0, 10.0, 10.0], 0.0)
        over = count >= [3, 5]
        out.terminated[:] = out.ended[:] = np.concatenate([count == 2, over])
        out.success[:] = np.where(out.ended, [0.0, 0.0, 1.0, 1.0], np.nan)
        out.any_ended, out.num_valid = bool(out.ended.any()), int(present.sum())
        self.count[over] = 0


class Still:
    columns = ()

    def initial_state(self, rows: int) -> Any:
        assert rows == 4
        return (np.zeros((rows, 1)),)

    def act(self, obs: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(state, ActArrays):
            return np.zeros(len(obs), np.int64), tuple(part + 1 for part in state)
        return None

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


def test_an_evaluation_counts_games_and_not_rows() -> None:
    evaluator = Evaluator(TwoAgentGames(), Still())  # type: ignore[arg-type]
    evaluation = evaluator.evaluate(3, deterministic=True, rng=np.random.default_rng(0))
    assert evaluation.returns == [2 + 30, 2 + 30, 2 + 50]
    assert evaluation.lengths == [3, 3, 5]
    assert evaluation.successes == [0.5, 0.5, 0.5]


def test_a_game_that_does_not_end_is_cut_off_as_a_whole() -> None:
    games = TwoAgentGames()
    evaluation = Evaluator(games, Still()).evaluate(  # type: ignore[arg-type]
        2, deterministic=True, rng=np.random.default_rng(0), max_episode_steps=4
    )
    assert (evaluation.returns, evaluation.lengths, evaluation.num_capped) == ([32, 42], [3, 4], 1)
    assert games.restarted == [[False, True]]


def test_a_sampler_reports_games_and_counts_the_transitions_of_agents() -> None:
    sampler = LocalSampler(TwoAgentGames(), Still(), Still())  # type: ignore[arg-type]
    collected = sampler.collect(5, Progress())
    assert [(one.total_reward, one.length) for one in collected.episodes] == [(32, 3), (52, 5)]
    assert collected.timesteps == 5 + 5 + 4 + 2
    assert sampler.acted.action.shape == (4,)


def test_an_agent_that_has_ended_is_remembered_until_its_game_is_over() -> None:
    games, running = TwoAgentGames(), RunningEpisodes(GAMES)
    for _ in range(2):
        games.step(None)
        assert running.record(games.out) == []
    resumed, without = RunningEpisodes(GAMES), RunningEpisodes(GAMES)
    resumed.load_state_dict(running.state_dict())
    without.load_state_dict(running.state_dict(), lost=[0])
    games.step(None)
    (episode,) = resumed.record(games.out)
    assert (episode.total_reward, episode.length, episode.success) == (32, 3, 0.5)
    assert without.record(games.out) == [], "its first agent has not ended again"
