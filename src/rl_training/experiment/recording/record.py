"""Records a dataset: plays episodes with saved agents and writes them; interrupted, the same call goes on."""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from rl_training.algorithms.base import Algorithm
from rl_training.core.errors import UserError
from rl_training.core.seeding import RECORDED_EPISODES, callers_generators_kept
from rl_training.datasets.minari_writing import Format, dataset_id, refuse_unwritable, write_episodes
from rl_training.datasets.recording import Episode
from rl_training.envs.factory import EnvFactory, make_env
from rl_training.experiment.checkpoints.locking import RunLock
from rl_training.experiment.console import duration
from rl_training.experiment.recording.agents import (
    Source,
    check_all,
    load_all,
    refuse_links,
    shared_environment,
)
from rl_training.experiment.recording.behaviour import Behaviour
from rl_training.experiment.recording.folder import RecordingFolder
from rl_training.experiment.recording.playing import RANDOM, Player
from rl_training.experiment.recording.settings import all_settings, compared, recorded_spec

SECONDS_PER_FILE, BYTES_PER_FILE = 1.0, 64 << 20
"""Finished episodes are written after this time, or when they have this size."""
SECONDS_BETWEEN_LINES = 5.0


@dataclass(frozen=True)
class Recorded:
    """What a recording has."""

    path: Path
    num_episodes: int
    num_steps: int
    mean_return: float | None
    """Of the episodes of this call; None if there were none."""


def record(
    runs: Source | Sequence[Source],
    *,
    to: str | PathLike[str],
    num_episodes: int = 100,
    noise: float = 0.0,
    random_fraction: float = 0.0,
    seed: int = 0,
    weights: Sequence[float] | None = None,
    env: EnvFactory | str | None = None,
    deterministic: bool = False,
    data_format: Format = "hdf5",
    trust_modules: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Recorded:
    """Play episodes with one or more agents and write them to the folder `to`; see `rl_training.record`."""
    sources = [runs] if isinstance(runs, str | PathLike | Algorithm) else list(runs)
    if not sources:
        raise UserError("there is no agent to record; give a run")
    behaviour = Behaviour(
        weights=tuple(map(float, weights)) if weights is not None else (1.0,) * len(sources),
        noise=float(noise), random_fraction=float(random_fraction), seed=seed, deterministic=deterministic,
    )  # fmt: skip
    behaviour.refuse_wrong(len(sources), num_episodes)
    folder = RecordingFolder(Path(to).expanduser())
    folder.refuse_foreign()
    agents = load_all(sources, env, trust_modules=trust_modules)
    refuse_links(folder.path, agents)
    with callers_generators_kept():  # building an environment may draw
        config, factory = shared_environment(agents, env, seed, say)
        with closing(make_env(config, 0, factory=factory, stream=RECORDED_EPISODES)()) as built:
            check_all(agents, config, built)
            behaviour.refuse_noise(built.action_space)
            refuse_unwritable(built.observation_space, built.action_space, data_format)
            player = Player(agents, built, behaviour, config.max_eval_episode_steps)
            settings = all_settings(
                agents, config, behaviour, num_episodes, data_format, named=factory is None
            )
            return _Recording(folder, player, settings, num_episodes, say).run(recorded_spec(config, factory))


class _Recording:
    """One call: what it plays, where it writes and what it prints."""

    def __init__(
        self,
        folder: RecordingFolder,
        player: Player,
        settings: dict[str, Any],
        num_episodes: int,
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.player, self.settings, self.num_episodes = folder, player, settings, num_episodes
        self.say, self.returns = say, list[float]()

    def run(self, spec: EnvSpec | None) -> Recorded:
        """Record what is missing and write the dataset."""
        folder = self.folder
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot record into {folder.path}: {error.strerror}") from error
        with RunLock(folder.path):
            folder.begin(self.settings, compared)
            if folder.is_complete:
                folder.tidy()
                self.say(f"{folder.path} is complete: {self.num_episodes:,} episodes")
                return Recorded(folder.path, self.num_episodes, folder.num_steps, None)
            if folder.num_episodes:
                self.say(f"{folder.num_episodes:,} of {self.num_episodes:,} episodes are recorded; going on")
            self._play()
            self.say(f"writing {self.num_episodes:,} episodes with {folder.num_steps:,} steps")
            folder.finish(lambda data: self._write(data, spec))
        mean = float(np.mean(self.returns)) if self.returns else None
        return Recorded(folder.path, self.num_episodes, folder.num_steps, mean)

    def _play(self) -> None:
        """Play the missing episodes; whole ones are kept however this ends."""
        begun = said = written = time.monotonic()
        waiting: list[Episode] = []
        first = self.folder.num_episodes
        try:
            for number in range(first, self.num_episodes):
                waiting.append(self.player.play(number))
                self.returns.append(waiting[-1].total_reward)
                now = time.monotonic()
                if now - written > SECONDS_PER_FILE or sum(each.nbytes for each in waiting) > BYTES_PER_FILE:
                    done, waiting = waiting, []
                    self.folder.add(done)
                    written = time.monotonic()
                if now - said > SECONDS_BETWEEN_LINES:
                    left = (now - begun) / (number + 1 - first) * (self.num_episodes - number - 1)
                    self.say(self._line(number + 1, left))
                    said = now
        finally:
            if waiting:
                self.folder.add(waiting)
        if self.player.num_cut:
            warnings.warn(
                f"{self.player.num_cut} episodes did not end within {self.player.max_steps:,} steps "
                "(max_eval_episode_steps) and are recorded as truncated there",
                stacklevel=2,
            )

    def _line(self, played: int, left: float) -> str:
        mean = float(np.mean(self.returns[-100:]))
        return f"{played:>9,} / {self.num_episodes:,} episodes  return {mean:.1f} (last 100)  {duration(left)} left"

    def _write(self, data: Path, spec: EnvSpec | None) -> None:
        space, env, settings = self.player.env.observation_space, self.player.env, self.folder.settings
        names = [each["algorithm"] for each in settings["agents"]]
        names += [RANDOM] if settings["random_fraction"] else []
        write_episodes(
            data,
            self.folder.episodes(),
            (space, env.action_space),
            data_format=settings["format"],
            env_spec=spec,
            metadata={
                "dataset_id": dataset_id(self.folder.path.absolute().name),
                "algorithm_name": ", ".join(dict.fromkeys(names)),
                "recording": settings,
            },
        )


__all__ = ["Recorded", "record"]
