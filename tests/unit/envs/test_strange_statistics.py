"""Wrappers of the user's own: what looks like running statistics and cannot be put back is left alone."""

from typing import Any

import gymnasium
import pytest

from rl_training.envs.wrapper_statistics import WrapperStatistics


class Welford:
    def __init__(self) -> None:
        self.mean, self.m2, self.count = 0.0, 0.0, 0

    @property
    def var(self) -> float:
        return self.m2 / max(self.count, 1)


class Dividing(Welford):
    @property
    def var(self) -> float:
        return self.m2 / self.count


class Keeping(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: Any, kept: Any) -> None:
        super().__init__(env)
        self.kept = kept


@pytest.mark.parametrize("kept", [Welford(), Dividing()])
def test_moments_that_cannot_be_set_are_no_statistics(kept: Any) -> None:
    found = WrapperStatistics(Keeping(gymnasium.make("CartPole-v1"), kept))
    assert not found
    assert found.read() == {}
