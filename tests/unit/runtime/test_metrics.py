import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rl_training.runtime.metrics import MetricMeans, _stacked


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


def test_numbers_of_several_devices_are_brought_together() -> None:
    """Losses lie beside the network; settings, and what a checkpoint brought back, on the CPU."""
    with FakeTensorMode():
        there, here = torch.ones((), device="cuda"), torch.ones(())
        means = MetricMeans()
        means.add({"loss": here, "learning_rate": here})
        means.add({"loss": there, "learning_rate": here})
        state = means.state_dict()
        assert all(values.device.type == "cpu" for values in state["values"].values())
        assert _stacked([here, there]).device.type == "cuda"


def test_what_waits_to_be_logged_survives_a_state_round_trip() -> None:
    one, other = MetricMeans(), MetricMeans()
    assert other.state_dict() == {"names": [], "values": {}}
    for value in (0.1, 0.7, 0.4):
        one.add({"loss": torch.tensor(value), "count": torch.tensor(3)})
    other.load_state_dict(one.state_dict())
    for means in (one, other):
        means.add({"loss": torch.tensor(0.3), "count": torch.tensor(4)})
    assert other.drain() == one.drain()
    other.load_state_dict({})
    assert other.drain() == {}


def test_types_may_differ() -> None:
    means = MetricMeans()
    means.add({"count": torch.tensor(3), "loss": torch.tensor(0.5, dtype=torch.float64)})
    assert means.drain() == {"train/count": 3.0, "train/loss": 0.5}
