"""PPO with every supported observation and action space, one and four environments, and all three backends."""

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_envs import AnySpaces

from rl_training.algorithms import PPO
from rl_training.trainer import train_ppo
from support.spaces import ACTIONS, OBSERVATIONS


@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_learn_predict_save_load(tiny, tmp_path, observation, action, num_envs):
    """The environment itself refuses an action outside its space, so finishing means that none was."""

    def make():
        return AnySpaces(OBSERVATIONS[observation], ACTIONS[action])

    config = tiny(
        env_id="AnySpaces", num_envs=num_envs, num_steps=8, batch_size=8, total_timesteps=8 * num_envs
    )
    model = PPO(config, env=make).learn()
    assert model.agent.timesteps == 8 * num_envs
    weights = load_file(model.agent.path / "model.safetensors")
    assert all(np.isfinite(array).all() for array in weights.values())

    env = make()
    obs, _ = env.reset(seed=3)
    chosen, _ = model.predict(obs)
    assert env.action_space.contains(chosen.item() if chosen.shape == () else chosen)

    model.save(tmp_path / "agent")
    again = PPO.load(tmp_path / "agent", env=make)
    assert np.array_equal(again.predict(obs)[0], chosen)
    assert again.evaluate(2) == model.evaluate(2)


def test_nested_observations_decide_the_action(tiny):
    """Every leaf reaches the network: changing any one of them changes what the policy computes."""
    space = OBSERVATIONS["nested"]
    model = PPO(tiny(env_id="AnySpaces"), env=lambda: AnySpaces(space, ACTIONS["box"]))
    base = {
        "arm": {"angle": np.zeros((2, 2), np.float32), "on": np.zeros(2, np.int8)},
        "pair": (np.int64(0), np.zeros(1, np.int64)),
    }
    changed = [
        {**base, "arm": {**base["arm"], "angle": np.ones((2, 2), np.float32)}},
        {**base, "arm": {**base["arm"], "on": np.ones(2, np.int8)}},
        {**base, "pair": (np.int64(2), base["pair"][1])},
        {**base, "pair": (base["pair"][0], np.full(1, 9, np.int64))},
    ]
    reference = model.predict(base)[0]
    for obs in changed:
        assert not np.array_equal(model.predict(obs)[0], reference)


@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize("backend", ["sync", "async", "native"])
def test_every_backend_trains_cartpole(tiny, backend, num_envs):
    config = tiny(env_id="CartPole-v1", env_backend=backend, num_envs=num_envs, total_timesteps=32 * num_envs)
    result = train_ppo(config, num_steps=32)
    if backend == "native":  # dead rows of the next-step autoreset are not counted
        assert result.metrics["global_step"] >= 32 * num_envs
    else:
        assert result.metrics["global_step"] == 32 * num_envs
    assert result.metrics["eval/mean_ep_length"] == result.metrics["eval/mean_reward"] > 0


def test_async_workers_serve_nested_observations_and_end(tiny):
    import multiprocessing

    config = tiny(env_id="AnySpaces", env_backend="async", total_timesteps=32)
    model = PPO(config, env=lambda: AnySpaces(OBSERVATIONS["nested"], ACTIONS["box"]))
    model.learn()
    assert model.agent.timesteps == 32
    assert multiprocessing.active_children() == []


def test_continuous_actions_reach_both_bounds_and_never_leave_them(tiny):
    """Actions arrive in the environment's units: a range of [0, 0.5] is used, and clipped at its ends."""
    seen = []

    class Recording(AnySpaces):
        def step(self, action):
            seen.append(np.array(action))
            return super().step(action)

    config = tiny(env_id="AnySpaces", num_steps=64, total_timesteps=128)
    PPO(config, env=lambda: Recording(OBSERVATIONS["box"], ACTIONS["box"])).learn()
    table = np.stack(seen)
    assert table.min(axis=0).tolist() == [-2.0, 0.0]
    assert table.max(axis=0).tolist() == [2.0, 0.5]
    assert np.unique(table[:, 1]).size > 20
