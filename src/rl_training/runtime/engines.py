"""Engines: where the experience of a run is collected."""

from collections.abc import Callable

from rl_training.core.protocols import EnvStepper, Explorer, Recorder, Sampler
from rl_training.core.types import EnvSpec
from rl_training.runtime.sampler import LocalSampler


class LocalEngine:
    """Collects in this process, in the environments that `build` returns."""

    total_updates = None

    def __init__(self, build: Callable[[], EnvStepper]) -> None:
        self._build = build
        self._stepper = build()

    @property
    def spec(self) -> EnvSpec:
        return self._stepper.spec

    @property
    def notices(self) -> list[str]:
        return self._stepper.notices

    def make_sampler(self, explorer: Explorer, recorder: Recorder) -> Sampler:
        return LocalSampler(self._stepper, explorer, recorder)

    def restart(self) -> None:
        self.close()
        self._stepper = self._build()

    def close(self) -> None:
        self._stepper.close()


class OfflineEngine:
    """Collects nothing: for a run that learns from a fixed source, such as a dataset, for `total_updates` updates."""

    def __init__(self, spec: EnvSpec, total_updates: int) -> None:
        if total_updates < 1:
            raise ValueError(f"total_updates is {total_updates}; use 1 or more")
        self.spec, self.total_updates = spec, total_updates
        self.notices: list[str] = []

    def make_sampler(self, explorer: Explorer, recorder: Recorder) -> None:
        """Return None: there is nothing to collect."""

    def restart(self) -> None:
        """There are no environments to replace."""

    def close(self) -> None:
        """There are no environments to close."""
