"""The peers' sides of a measurement. Each trains the warm-up first, which compiles what is compiled, then is timed.

Nothing is evaluated and nothing logged. Peers are imported where they are used: a process has one of them.
"""

import time
from collections.abc import Callable
from typing import Any

from fair import TrainingClock, mean_return
from rows import CONTRIB, RLOX, SB3, SBX, TIANSHOU, Race, Speed

NAMES = {
    "num_steps": "n_steps",
    "update_epochs": "n_epochs",
    "clip_coef": "clip_range",
    "target_update_every_timesteps": "target_update_interval",
}
"""Our name of a setting -> that of stable-baselines3 and those built like it, where they differ."""
NEVER = 10**9


def timed(run: Callable[[int], object], row: Speed, side: str) -> dict[str, float]:
    """Train the warm-up, then return the steps per second of the rest."""
    run(row.warm_up)
    steps, started = row.steps_of.get(side, row.steps), time.perf_counter()
    run(steps)
    seconds = time.perf_counter() - started
    return {"steps_per_second": steps / seconds, "steps": steps, "seconds": seconds}


def translated(row: Speed, *, jax: bool = False) -> dict[str, Any]:
    """Return a row's settings as arguments of stable-baselines3."""
    settings = dict(row.settings)
    hidden = list(settings.pop("hidden_sizes"))
    for name in ("learning_rate", "clip_coef"):
        if settings.pop(f"{name}_schedule", "constant") == "linear":
            settings[name] = _linear(settings[name])
    policy: dict[str, Any] = {}
    if row.preprocessing == "none":
        policy["net_arch"] = hidden
    settings.pop("features_dim", None)  # 512 is what the peers have
    if row.algo == "recurrent_ppo":
        import torch

        settings.pop("sequence_length"), settings.pop("activation")
        policy = {
            "enable_critic_lstm": True,
            "lstm_hidden_size": settings.pop("core_size"),
            "net_arch": {"pi": hidden, "vf": hidden},
            "activation_fn": torch.nn.ReLU,
            "ortho_init": False,
        }
    if policy:
        settings["policy_kwargs"] = policy
    return {NAMES.get(name, name): value for name, value in settings.items()} | (
        {} if jax else {"device": "cpu"}
    )


def _linear(start: float) -> Callable[[float], float]:
    return lambda remaining: start * remaining


def built_like_sb3(row: Speed, side: str, seed: int = 1) -> Any:
    """Return a model of stable-baselines3, sb3-contrib or SBX."""
    import torch
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    if side == SB3:
        import stable_baselines3 as peer
    elif side == SBX:
        import sbx as peer
    else:
        import sb3_contrib as peer
    kind = {"recurrent_ppo": "RecurrentPPO"}.get(row.algo, row.algo.upper())
    settings = translated(row, jax=side == SBX)
    env = (
        _games(row)
        if row.preprocessing == "atari"
        else make_vec_env(row.env_id, n_envs=row.num_envs, seed=seed)
    )
    if row.algo == "td3":
        import numpy as np
        from stable_baselines3.common.noise import NormalActionNoise

        size = env.action_space.shape[0]
        settings["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, 0.1))
    policy = "CnnPolicy" if row.preprocessing == "atari" else "MlpPolicy"
    policy = "MlpLstmPolicy" if row.algo == "recurrent_ppo" else policy
    return getattr(peer, kind)(policy, env, seed=seed, **settings)


def _games(row: Speed) -> Any:
    """Return the peer's games with its usual wrappers, in this process."""
    import ale_py
    import gymnasium
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

    gymnasium.register_envs(ale_py)
    games = make_atari_env(row.env_id, n_envs=row.num_envs, seed=1, vec_env_cls=DummyVecEnv)
    return VecFrameStack(games, n_stack=4)


def like_sb3(row: Speed, side: str) -> dict[str, Any]:
    """Time `learn`, called a second time."""
    model = built_like_sb3(row, side)
    return timed(lambda steps: model.learn(steps, log_interval=NEVER, reset_num_timesteps=False), row, side)


def tianshou(row: Speed, side: str) -> dict[str, Any]:
    """PPO with separate networks, Tianshou's own trainer and its vector environment in this process."""
    import gymnasium
    import torch
    from tianshou.algorithm.modelfree.ppo import PPO
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OnPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

    torch.set_num_threads(1)
    settings, one = row.settings, gymnasium.make(row.env_id)
    envs = DummyVectorEnv([lambda: gymnasium.make(row.env_id) for _ in range(row.num_envs)])
    envs.seed(1)

    def body() -> Net:
        return Net(
            state_shape=one.observation_space.shape,
            hidden_sizes=settings["hidden_sizes"],
            activation=torch.nn.Tanh,
        )

    actor = DiscreteActor(preprocess_net=body(), action_shape=one.action_space.n, softmax_output=False)
    algorithm = PPO(
        policy=DiscreteActorPolicy(actor=actor, action_space=one.action_space),
        critic=DiscreteCritic(preprocess_net=body()),
        optim=AdamOptimizerFactory(lr=settings["learning_rate"], eps=1e-5),
        eps_clip=settings["clip_coef"],
        gamma=settings["gamma"],
        gae_lambda=settings["gae_lambda"],
        ent_coef=0.0,
        vf_coef=0.5,
        max_grad_norm=0.5,
    )
    rollout = row.num_envs * settings["num_steps"]
    collector = Collector(algorithm, envs, VectorReplayBuffer(rollout, row.num_envs))

    def run(steps: int) -> None:
        algorithm.run_training(
            OnPolicyTrainerParams(
                training_collector=collector,
                max_epochs=1,
                epoch_num_steps=steps,
                collection_step_num_env_steps=rollout,
                update_step_num_repetitions=settings["update_epochs"],
                batch_size=settings["batch_size"],
                show_progress=False,
                verbose=False,
            )
        )

    return timed(run, row, side)


def rlox(row: Speed, side: str) -> dict[str, Any]:
    """PPO with the peer's own CartPole, which is not Gymnasium's but written in Rust."""
    import torch
    from rlox.algorithms.ppo import PPO

    torch.set_num_threads(1)
    settings = row.settings
    model = PPO(
        row.env_id,
        n_envs=row.num_envs,
        seed=1,
        n_steps=settings["num_steps"],
        n_epochs=settings["update_epochs"],
        batch_size=settings["batch_size"],
        learning_rate=settings["learning_rate"],
        clip_eps=settings["clip_coef"],
        gamma=settings["gamma"],
        gae_lambda=settings["gae_lambda"],
        ent_coef=0.0,
        clip_vloss=False,
    )
    return timed(model.train, row, side)


SIDES: dict[str, Callable[[Speed, str], dict[str, Any]]] = {
    SB3: like_sb3, SBX: like_sb3, CONTRIB: like_sb3, TIANSHOU: tianshou, RLOX: rlox,
}  # fmt: skip


def race(row: Race, settings: Speed, seed: int) -> dict[str, Any]:
    """Train stable-baselines3 until the policy is good; its games are played between two rollouts, as ours are."""
    from stable_baselines3.common.callbacks import BaseCallback

    clock = TrainingClock(row.evaluate_every)

    class Goal(BaseCallback):
        def _on_rollout_start(self) -> None:
            if clock.due(self.num_timesteps):
                clock.stop()
                found = mean_return(
                    lambda obs: self.model.predict(obs, deterministic=True)[0], row.num_episodes
                )
                clock.noted(self.num_timesteps, found, row.threshold)
                clock.start()

        def _on_step(self) -> bool:
            return not clock.reached

    model = built_like_sb3(settings, row.peer, seed)
    clock.start()
    model.learn(row.total_timesteps, callback=Goal(), log_interval=NEVER)
    return clock.result()
