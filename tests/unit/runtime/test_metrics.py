import gc
import json
import tracemalloc
import weakref

import pytest
import torch

from rl_training.core.types import EpisodeStats
from rl_training.runtime.metrics import MetricMeans, RecentEpisodes


def test_metrics_are_averaged_between_two_drains() -> None:
    means = MetricMeans()
    means.add({"value_loss": torch.tensor(1.0), "approx_kl": torch.tensor(0.2)})
    means.add({"value_loss": torch.tensor(4.0), "approx_kl": torch.tensor(0.4)})
    assert means.drain() == {"train/value_loss": 2.5, "train/approx_kl": pytest.approx(0.3)}
    means.add({"value_loss": torch.tensor(7.0)})
    assert means.drain() == {"train/value_loss": 7.0}


def test_nothing_is_drained_where_nothing_was_added() -> None:
    means = MetricMeans()
    assert means.drain() == {}
    means.add({"loss": torch.tensor(1.0)})
    means.drain()
    assert means.drain() == {}


def test_the_policy_loss_has_the_name_dashboards_know() -> None:
    means = MetricMeans()
    means.add({"policy_loss": torch.tensor(3.0)})
    assert means.drain() == {"train/policy_gradient_loss": 3.0}


class OnDevice(torch.Tensor):
    """A number that says it does not lie on the CPU, and counts how often it is waited for."""

    is_cpu = False
    waits = 0

    def tolist(self) -> list[float]:
        OnDevice.waits += 1
        return super().tolist()

    def item(self) -> float:
        raise AssertionError("an update must not wait for the device")


def on_device(value: float) -> torch.Tensor:
    return torch.tensor(value).as_subclass(OnDevice)


def test_numbers_of_several_devices_are_brought_together_with_one_wait_per_row() -> None:
    """Losses lie beside the network; settings, and what a checkpoint brought back, on the CPU."""
    OnDevice.waits = 0
    means, resumed = MetricMeans(), MetricMeans()
    means.add({"loss": torch.tensor(1.0), "learning_rate": torch.tensor(0.5), "norm": on_device(8.0)})
    resumed.load_state_dict(means.state_dict())
    for each in (means, resumed):
        each.add({"loss": on_device(2.0), "learning_rate": torch.tensor(0.5), "norm": on_device(4.0)})
    assert OnDevice.waits == 1  # that of the state
    expected = {"train/loss": 1.5, "train/learning_rate": 0.5, "train/norm": 6.0}
    assert means.drain() == resumed.drain() == expected
    assert OnDevice.waits == 3


def test_memory_does_not_grow_with_the_updates_between_two_rows() -> None:
    means = MetricMeans()
    added = [torch.tensor(float(number)) for number in range(10_000)]
    alive = [weakref.ref(number) for number in added]
    tracemalloc.start()
    try:
        for number in added:
            means.add({"loss": number, "norm": number})
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del added, number
    gc.collect()
    assert not any(reference() is not None for reference in alive)
    assert grown < 10_000
    assert means.drain() == {"train/loss": 4999.5, "train/norm": 4999.5}


def test_names_of_a_users_own_stay_as_they_are() -> None:
    means = MetricMeans(name_in_log=str)
    means.add({"policy_loss": torch.tensor(3.0), "mine/height": torch.tensor(2.0)})
    assert means.drain() == {"policy_loss": 3.0, "mine/height": 2.0}


def test_what_waits_to_be_logged_survives_a_state_round_trip() -> None:
    one, other = MetricMeans(), MetricMeans()
    assert other.state_dict() == {"names": [], "counts": [], "sums": []}
    for value in (0.1, 0.7, 0.4):
        one.add({"loss": torch.tensor(value), "count": torch.tensor(3)})
    other.load_state_dict(one.state_dict())
    for means in (one, other):
        means.add({"loss": torch.tensor(0.3), "count": torch.tensor(4)})
    assert other.drain() == one.drain()


def test_types_may_differ() -> None:
    means = MetricMeans()
    means.add({"count": torch.tensor(3), "loss": torch.tensor(0.5, dtype=torch.float64)})
    assert means.drain() == {"train/count": 3.0, "train/loss": 0.5}


def test_means_are_those_of_the_last_episodes_but_all_are_counted() -> None:
    recent = RecentEpisodes(window=3)
    assert recent.means() == {}
    recent.add([EpisodeStats(float(reward), reward + 1, 0.1) for reward in range(5)])
    assert [episode.total_reward for episode in recent.recent] == [2.0, 3.0, 4.0]
    assert recent.means() == {"rollout/ep_rew_mean": 3.0, "rollout/ep_len_mean": 4.0}
    assert recent.total == 5


def test_a_state_round_trip() -> None:
    one, other = RecentEpisodes(), RecentEpisodes()
    one.add([EpisodeStats(1.0, 2, 0.5), EpisodeStats(5.0, 3, 0.25)])
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert other.means() == one.means()
    assert (other.total, list(other.recent)) == (2, list(one.recent))
