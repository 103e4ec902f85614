"""DQN on CartPole in one file: the whole loop, top to bottom, with nothing hidden.

    python examples/dqn_cartpole_reference.py --total-timesteps 50000

Reads like the paper (Mnih et al. 2015), with double Q-learning (arXiv:1509.06461) as a switch. The `rl_training`
package computes the same update faster; a test checks that both give the same parameters, to the last digit.
"""

import copy
from collections import deque
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    """Gymnasium id of an environment with a vector observation and discrete actions."""
    max_episode_steps: int | None = None
    """Time limit of an episode; None keeps the environment's own limit."""
    seed: int = 1
    """Root seed of all random streams."""
    total_timesteps: int = 50_000
    """Environment steps."""
    train_freq: int = 256
    """Steps between two rounds of updates."""
    gradient_steps: int = 128
    """Updates in one round."""
    learning_starts: int = 1_000
    """Steps with random actions before the first round."""
    batch_size: int = 64
    """Transitions in one update."""
    buffer_size: int = 100_000
    """Capacity of the replay buffer in transitions."""
    learning_rate: float = 2.3e-3
    """Initial learning rate (Adam); it decays linearly to 0."""
    gamma: float = 0.99
    """Discount."""
    target_update_every_timesteps: int = 10
    """Steps between updates of the target network; each happens before a round of gradient updates."""
    exploration_initial_eps: float = 1.0
    """Probability of a random action at the start."""
    exploration_final_eps: float = 0.04
    """Probability of a random action after exploration_fraction."""
    exploration_fraction: float = 0.16
    """Fraction of the budget over which that probability decays linearly."""
    max_grad_norm: float = 10.0
    """Maximum norm of the gradient."""
    double: bool = False
    """Choose the next action with the online network, evaluate it with the target network."""


# ------------------------------------------------------------------------------------------------ random numbers
# One root seed; every consumer has its own stream, so that changing one does not affect another.


def stream(seed: int, *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=key)


EPISODES, ACTIONS, REPLAY = 0, 2, 7


# ------------------------------------------------------------------------------------------------ network


def linear(fan_in: int, fan_out: int, generator: torch.Generator) -> nn.Linear:
    """Torch's default uniform initialization, drawn from an explicit generator."""
    layer = nn.Linear(fan_in, fan_out)
    bound = fan_in**-0.5
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer


def q_network(obs_size: int, num_actions: int, generator: torch.Generator) -> nn.Sequential:
    """Maps observations [B, D] to the values [B, A] of all actions."""
    return nn.Sequential(
        linear(obs_size, 256, generator),
        nn.ReLU(),
        linear(256, 256, generator),
        nn.ReLU(),
        linear(256, num_actions, generator),
    )


# ------------------------------------------------------------------------------------------------ environment


class Env:
    """One environment. Episode k always starts from the same seed."""

    def __init__(self, args: Args) -> None:
        limit = {} if args.max_episode_steps is None else {"max_episode_steps": args.max_episode_steps}
        self.env = gym.make(args.env_id, **limit)
        self.seed = args.seed
        self.episode = -1
        self.episode_return = 0.0
        self.finished: deque[float] = deque(maxlen=100)

    def reset(self) -> np.ndarray:
        self.episode += 1
        self.episode_return = 0.0
        block, place = divmod(self.episode, 64)  # seeds are made 64 at a time
        seed = stream(self.seed, EPISODES, 0, block).generate_state(64)[place]  # 0: the only environment
        return self.env.reset(seed=int(seed))[0]


# ------------------------------------------------------------------------------------------------ replay


class Replay:
    """A ring buffer of transitions [C]; new ones replace the oldest."""

    def __init__(self, capacity: int, obs_size: int) -> None:
        self.obs = torch.zeros(capacity, obs_size)
        self.actions = torch.zeros(capacity, dtype=torch.long)
        self.rewards = torch.zeros(capacity)
        self.next_obs = torch.zeros(capacity, obs_size)
        self.terminated = torch.zeros(capacity, dtype=torch.bool)
        self.written = 0

    def __len__(self) -> int:
        return min(self.written, len(self.actions))

    def add(
        self, obs: np.ndarray, action: int, reward: float, next_obs: np.ndarray, terminated: bool
    ) -> None:
        """`next_obs` is the true next observation, never the first one of the next episode."""
        row = self.written % len(self.actions)
        self.obs[row] = torch.as_tensor(obs)
        self.actions[row] = action
        self.rewards[row] = reward
        self.next_obs[row] = torch.as_tensor(next_obs)
        self.terminated[row] = terminated
        self.written += 1

    def batch(self, rows: np.ndarray) -> dict[str, Tensor]:
        names = ("obs", "actions", "rewards", "next_obs", "terminated")
        return {name: getattr(self, name)[torch.as_tensor(rows)] for name in names}


# ------------------------------------------------------------------------------------------------ acting


def exploration_rate(timesteps: int, args: Args) -> float:
    """Return the probability of a random action: 1 before learning starts, then linearly decreasing."""
    if timesteps < args.learning_starts:
        return 1.0
    fraction = min(timesteps / args.total_timesteps / args.exploration_fraction, 1.0)
    initial, final = args.exploration_initial_eps, args.exploration_final_eps
    return initial + (final - initial) * fraction


@torch.no_grad()
def act(
    network: nn.Module, obs: np.ndarray, epsilon: float, num_actions: int, rng: np.random.Generator
) -> int:
    # always draw both numbers, so that the random stream does not depend on the network
    explores = rng.random() < epsilon
    random_action = int(rng.integers(num_actions))
    if explores:
        return random_action
    return int(network(torch.as_tensor(obs).to(torch.get_default_dtype())).argmax())


def collect(
    network: nn.Module,
    env: Env,
    replay: Replay,
    obs: np.ndarray,
    epsilon: float,
    args: Args,
    rng: np.random.Generator,
) -> np.ndarray:
    """Take `train_freq` steps from `obs`, store them, and return the current observation."""
    num_actions = int(env.env.action_space.n)
    for _ in range(args.train_freq):
        action = act(network, obs, epsilon, num_actions, rng)
        next_obs, reward, terminated, truncated, _ = env.env.step(action)
        # truncation is not stored, because it does not stop bootstrapping
        replay.add(obs, action, float(reward), next_obs, terminated)
        env.episode_return += float(reward)
        if terminated or truncated:
            env.finished.append(env.episode_return)
            next_obs = env.reset()  # reset only now: the buffer needs the true final observation
        obs = next_obs
    return obs


# ------------------------------------------------------------------------------------------------ the update


def loss_on(network: nn.Module, target: nn.Module, batch: dict[str, Tensor], args: Args) -> Tensor:
    """The Huber loss between the values of the actions taken and their one-step targets [B]."""
    with torch.no_grad():
        next_values = target(batch["next_obs"])
        # the maximum of noisy values overestimates; choosing with the other network reduces this
        chooser = network(batch["next_obs"]) if args.double else next_values
        next_value = next_values.gather(1, chooser.argmax(1, keepdim=True)).squeeze(1)
        targets = batch["rewards"] + args.gamma * ~batch["terminated"] * next_value
    values = network(batch["obs"]).gather(1, batch["actions"][:, None]).squeeze(1)
    return F.smooth_l1_loss(values, targets)


def update(
    network: nn.Module,
    target: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: dict[str, Tensor],
    args: Args,
) -> None:
    loss = loss_on(network, target, batch, args)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), args.max_grad_norm)
    optimizer.step()


def train(args: Args) -> tuple[nn.Module, float]:
    """Return the trained network and the mean return of the last 100 training episodes."""
    env = Env(args)
    obs_space, action_space = env.env.observation_space, env.env.action_space
    assert isinstance(obs_space, gym.spaces.Box), "this script is for vector observations"
    assert isinstance(action_space, gym.spaces.Discrete), "this script is for discrete actions"
    network = q_network(obs_space.shape[0], int(action_space.n), torch.Generator().manual_seed(args.seed))
    target = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=args.learning_rate, eps=1e-8)
    replay = Replay(args.buffer_size, obs_space.shape[0])
    action_rng = np.random.default_rng(stream(args.seed, ACTIONS))
    replay_rng = np.random.default_rng(stream(args.seed, REPLAY))

    obs = env.reset()
    timesteps, copies, mean_return = 0, 0, float("nan")
    while timesteps < args.total_timesteps:
        epsilon = exploration_rate(timesteps, args)  # the same for all steps until the next round
        obs = collect(network, env, replay, obs, epsilon, args, action_rng)
        timesteps += args.train_freq
        if timesteps > args.learning_starts:
            # one copy, even if several multiples were passed; it is then constant for the whole round
            if timesteps // args.target_update_every_timesteps > copies:
                copies = timesteps // args.target_update_every_timesteps
                target.load_state_dict(network.state_dict())
            left = max(0.0, 1 - timesteps / args.total_timesteps)
            optimizer.param_groups[0]["lr"] = args.learning_rate * left  # the same for the whole round
            for rows in replay_rng.integers(0, len(replay), (args.gradient_steps, args.batch_size)):
                update(network, target, optimizer, replay.batch(rows), args)
        if env.finished:
            mean_return = float(np.mean(env.finished))
        if (timesteps // args.train_freq) % 20 == 0:
            print(f"{timesteps:>8} steps  return {mean_return:.1f}")
    return network, mean_return


if __name__ == "__main__":
    torch.set_num_threads(1)  # small networks train fastest on one thread
    _, final_return = train(tyro.cli(Args, description=__doc__))
    print(f"mean return of the last 100 training episodes: {final_return:.1f}")
