import json

from rl_training.core.types import EpisodeStats
from rl_training.runtime.metrics import RecentEpisodes


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
