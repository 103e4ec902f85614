"""Averages the metrics of updates between two log rows, under the names that dashboards use."""

import warnings
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from rl_training.core.errors import did_you_mean
from rl_training.core.info_keywords import keyword_parts
from rl_training.core.types import EpisodeStats, Metrics, State, agent_means, info_means

LOGGED_NAMES = {"policy_loss": "train/policy_gradient_loss", "exploration_rate": "rollout/exploration_rate"}
"""Metrics whose name in the log differs from `train/<name>`."""
HELD_OUT = "held_out/"
"""Prefix of losses on held-out data."""


def first_non_finite(metrics: Metrics) -> str | None:
    """Return the name of the first loss or gradient norm that is nan or infinite; the rest may be undefined."""
    watched = [name for name in metrics if name.endswith(("loss", "norm"))]
    finite = torch.isfinite(torch.stack([metrics[name] for name in watched])).tolist() if watched else []
    return next((name for name, fine in zip(watched, finite, strict=True) if not fine), None)


def logged_name(name: str) -> str:
    """Return the name in the log of an update's metric `name`."""
    return name if name.startswith(HELD_OUT) else LOGGED_NAMES.get(name, f"train/{name}")


class RecentEpisodes:
    """Keeps the last episodes that ended, and counts all."""

    def __init__(self, window: int = 100) -> None:
        self.recent: deque[EpisodeStats] = deque(maxlen=window)
        self.total = 0

    def add(self, episodes: Iterable[EpisodeStats]) -> None:
        """Add episodes in the order they ended."""
        for episode in episodes:
            self.recent.append(episode)
            self.total += 1

    def means(self) -> dict[str, float]:
        """Return mean return, length, success and info numbers of the recent episodes; {} before the first."""
        if not self.recent:
            return {}
        told = [episode.success for episode in self.recent if episode.success is not None]
        success = {"rollout/success_rate": float(np.mean(told))} if told else {}
        info = info_means(episode.info for episode in self.recent)
        return (
            success
            | info
            | agent_means((episode.agents for episode in self.recent), "rollout/ep_rew_mean")
            | {
                "rollout/ep_rew_mean": float(np.mean([episode.total_reward for episode in self.recent])),
                "rollout/ep_len_mean": float(np.mean([episode.length for episode in self.recent])),
            }
        )

    def state_dict(self) -> State:
        recent = [
            [one.total_reward, one.length, one.seconds, *([] if one.success is None else [one.success])]
            for one in self.recent
        ]
        infos = [one.info for one in self.recent]
        agents = [one.agents for one in self.recent]
        return (
            {"recent": recent, "total_episodes": self.total}
            | ({"infos": infos} if any(infos) else {})
            | ({"agents": agents} if any(agents) else {})
        )

    def load_state_dict(self, state: State) -> None:
        self.recent.clear()
        infos = state.get("infos", [{}] * len(state["recent"]))
        agents = state.get("agents", [{}] * len(state["recent"]))
        for (total, length, seconds, *success), info, own in zip(state["recent"], infos, agents, strict=True):
            told = float(success[0]) if success else None
            ended = EpisodeStats(float(total), int(length), float(seconds), told, dict(info), dict(own))
            self.recent.append(ended)
        self.total = int(state["total_episodes"])


MANY_EPISODES = 20
"""Episodes after which a number that no step has reported is missing."""


class MissingKeywords:
    """Warns once about `info_keywords` that the environment has not reported in `MANY_EPISODES` or the whole run."""

    def __init__(self, keywords: Iterable[str]) -> None:
        self._names = [keyword_parts(keyword)[0] for keyword in keywords]
        self._reported: frozenset[str] = frozenset()
        self._has_collected = False
        self.checked = not self._names

    def add(self, info_names: frozenset[str]) -> None:
        """Take the names of the entries of `info` so far."""
        self._reported, self._has_collected = info_names, True

    def due(self, num_episodes: int, *, last: bool) -> bool:
        """Return whether to check now, given the number of episodes of the run, with those before an interruption."""
        return not self.checked and (last or num_episodes >= MANY_EPISODES)

    def check(self, recent: Iterable[EpisodeStats]) -> None:
        """Warn about names that no step has reported; `recent` episodes may be from before an interruption.

        Nothing is known, and said, before this process has collected. The check is done nevertheless, so that a resumed
        run saves the same state.
        """
        self.checked = True
        if not self._has_collected:
            return
        known = self._reported.union(*(episode.info for episode in recent))
        missing = [name for name in self._names if name not in known]
        if missing:
            reported = ", ".join(f"'{name}'" for name in sorted(known)) or "nothing"
            named = ", ".join(f"'{name}'" for name in missing)
            warnings.warn(
                f"info_keywords: no step has reported {named} so far; info contains: "
                f"{reported}{did_you_mean(missing[0], known)}",
                stacklevel=2,
            )


class MetricMeans:
    """Means of the metrics since the last log row, under the names that `name_in_log` returns.

    Only sums are kept: a tensor that outlives its update fragments the heap, by half a megabyte each on large networks.
    Tensors on the CPU are read at once, which is faster than adding them; on other devices the sums stay there, so that
    adding does not wait for the device. Each name has its own count, as not every update has the same metrics: a
    delayed actor has no loss in between.
    """

    def __init__(self, name_in_log: Callable[[str], str] = logged_name) -> None:
        self._name_in_log = name_in_log
        self._sums: dict[str, float | Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: Metrics) -> None:
        sums, counts = self._sums, self._counts
        for name, value in metrics.items():
            sums[name] = sums.get(name, 0.0) + (value.item() if value.is_cpu else value.double())
            counts[name] = counts.get(name, 0) + 1

    def drain(self) -> dict[str, float]:
        """Return the means under the names of the log and forget them."""
        means = {
            self._name_in_log(name): total / self._counts[name]
            for name, total in zip(self._sums, self._read_sums(), strict=True)
        }
        self._sums.clear()
        self._counts.clear()
        return means

    def state_dict(self) -> State:
        return {
            "names": list(self._sums),  # the order is that of the log's columns
            "counts": list(self._counts.values()),
            "sums": [total.hex() for total in self._read_sums()],  # exact, and JSON has no nan
        }

    def load_state_dict(self, state: State) -> None:
        names = state["names"]
        self._sums = dict(zip(names, map(float.fromhex, state["sums"]), strict=True))
        self._counts = dict(zip(names, map(int, state["counts"]), strict=True))

    def _read_sums(self) -> list[float]:
        """Return the sums as numbers, with one synchronisation for all tensors on a device."""
        elsewhere = [total for total in self._sums.values() if isinstance(total, Tensor)]
        read = iter(torch.stack(elsewhere).tolist() if elsewhere else [])
        return [next(read) if isinstance(total, Tensor) else total for total in self._sums.values()]
