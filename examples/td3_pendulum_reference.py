"""TD3 on Pendulum in one file: the whole loop, top to bottom, with nothing hidden.

    python examples/td3_pendulum_reference.py --total-timesteps 20000

Reads like the paper (arXiv:1802.09477) plus the details that make it work. The `rl_training` package computes the
same update faster; a test checks that both give the same parameters, to the last digits.
"""

import copy
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch import Tensor, nn


@dataclass
class Args:
    env_id: str = "Pendulum-v1"
    """Gymnasium id of an environment with a vector observation and bounded continuous actions."""
    max_episode_steps: int | None = None
    """Time limit of an episode; None keeps the environment's own limit."""
    seed: int = 1
    """Root seed of all random streams."""
    total_timesteps: int = 20_000
    """Environment steps."""
    learning_starts: int = 10_000
    """Steps with uniformly random actions before the first update; after them every step is followed by one update."""
    buffer_size: int = 200_000
    """Capacity of the replay buffer in transitions."""
    batch_size: int = 256
    """Transitions in one update."""
    hidden_sizes: tuple[int, ...] = (400, 300)
    """Sizes of the hidden layers of actor and critics."""
    learning_rate: float = 1e-3
    """Learning rate of actor and critics (Adam)."""
    gamma: float = 0.98
    """Discount."""
    tau: float = 0.005
    """Rate of the soft update of the target networks, in every update of the actor."""
    policy_delay: int = 2
    """Updates of the critics per update of actor and targets."""
    target_policy_noise: float = 0.2
    """Standard deviation of the noise on target actions, which are in [-1, 1]."""
    target_noise_clip: float = 0.5
    """Clipping range of that noise."""
    action_noise_sigma: float = 0.1
    """Standard deviation of the exploration noise."""


# ------------------------------------------------------------------------------------------------ random numbers
# One root seed; every consumer has its own stream, so that changing one does not affect another.


def stream(seed: int, *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=key)


EPISODES, ACTIONS, REPLAY, UPDATE_NOISE = 0, 2, 7, 8


def real() -> np.dtype:
    """The NumPy equivalent of torch's default dtype: float32, unless a test uses float64."""
    return torch.zeros(0).numpy().dtype


# ------------------------------------------------------------------------------------------------ networks


def linear(fan_in: int, fan_out: int, generator: torch.Generator) -> nn.Linear:
    """Torch's default uniform initialization, drawn from an explicit generator."""
    layer = nn.Linear(fan_in, fan_out)
    bound = fan_in**-0.5
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer


def chain(layers: list[nn.Linear]) -> nn.Sequential:
    """Apply the layers with ReLU in between, but not after the last one."""
    modules: list[nn.Module] = [layers[0]]
    for layer in layers[1:]:
        modules += [nn.ReLU(), layer]
    return nn.Sequential(*modules)


def twin_critics(sizes: Sequence[int], generator: torch.Generator) -> nn.ModuleList:
    """Two independent critics.

    Initial weights are drawn in the order of the package, which batches its critics into one network: layer by layer,
    and within a layer critic by critic, with shape [in, out].
    """
    first: list[nn.Linear] = []
    second: list[nn.Linear] = []
    for fan_in, fan_out in pairwise(sizes):
        for layers in (first, second):
            layer = linear(fan_in, fan_out, generator)
            layer.weight.data = layer.weight.data.view(fan_in, fan_out).T.contiguous()
            layers.append(layer)
    return nn.ModuleList([chain(first), chain(second)])


class Agent:
    """An actor, two critics, and a target copy of each."""

    def __init__(self, obs_size: int, action_size: int, args: Args) -> None:
        generator = torch.Generator().manual_seed(args.seed)
        actor_sizes = (obs_size, *args.hidden_sizes, action_size)
        self.actor = chain([linear(*ends, generator) for ends in pairwise(actor_sizes)])
        self.critics = twin_critics((obs_size + action_size, *args.hidden_sizes, 1), generator)
        self.target_actor = copy.deepcopy(self.actor)
        self.target_critics = copy.deepcopy(self.critics)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=args.learning_rate, eps=1e-8)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=args.learning_rate, eps=1e-8)

    @torch.no_grad()
    def act(self, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """The actor's action [A] for one observation [D], with exploration noise [A]."""
        action = torch.tanh(self.actor(torch.from_numpy(obs.astype(real()))))
        return (action.numpy() + noise).clip(-1, 1).astype(real())


# ------------------------------------------------------------------------------------------------ the environment


class Env:
    """One environment with actions in [-1, 1]. Episode k always starts from the same seed."""

    def __init__(self, args: Args) -> None:
        limit = {} if args.max_episode_steps is None else {"max_episode_steps": args.max_episode_steps}
        self.env = gym.make(args.env_id, **limit)
        obs_space, self.action_space = self.env.observation_space, self.env.action_space
        assert isinstance(obs_space, gym.spaces.Box), "this script is for vector observations"
        assert isinstance(self.action_space, gym.spaces.Box), "this script is for continuous actions"
        assert self.action_space.is_bounded(), "this script is for actions with bounds"
        self.obs_size, self.action_size = obs_space.shape[0], self.action_space.shape[0]
        self.seed = args.seed
        self.episode = -1
        self.total_reward = 0.0
        self.finished: deque[float] = deque(maxlen=20)

    def reset(self) -> np.ndarray:
        self.episode += 1
        self.total_reward = 0.0
        block, place = divmod(self.episode, 64)  # seeds are made 64 at a time
        seed = stream(self.seed, EPISODES, 0, block).generate_state(64)[place]
        return self.env.reset(seed=int(seed))[0]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        low, high = self.action_space.low, self.action_space.high
        scaled = np.clip(action * ((high - low) / 2) + (high + low) / 2, low, high)
        obs, reward, terminated, truncated, _ = self.env.step(scaled.astype(self.action_space.dtype))
        self.total_reward += float(reward)
        if terminated or truncated:
            self.finished.append(self.total_reward)
        return obs, float(reward), bool(terminated), bool(truncated)


# ------------------------------------------------------------------------------------------------ replay


class Replay:
    """A ring buffer of transitions with one array per field."""

    def __init__(self, capacity: int, obs_size: int, action_size: int) -> None:
        self.obs = np.zeros((capacity, obs_size), real())
        self.next_obs = np.zeros((capacity, obs_size), real())
        self.actions = np.zeros((capacity, action_size), real())
        self.rewards = np.zeros(capacity, real())
        self.terminated = np.zeros(capacity, real())
        self.capacity = capacity
        self.added = 0

    def add(
        self, obs: np.ndarray, action: np.ndarray, reward: float, next_obs: np.ndarray, terminated: bool
    ) -> None:
        row = self.added % self.capacity
        self.obs[row], self.next_obs[row] = obs, next_obs
        self.actions[row], self.rewards[row], self.terminated[row] = action, reward, terminated
        self.added += 1

    def batch(self, size: int, rng: np.random.Generator) -> dict[str, Tensor]:
        rows = rng.integers(0, min(self.added, self.capacity), size)
        names = ("obs", "next_obs", "actions", "rewards", "terminated")
        return {name: torch.from_numpy(getattr(self, name)[rows]) for name in names}


# ------------------------------------------------------------------------------------------------ the update


def update_critics(agent: Agent, batch: dict[str, Tensor], noise: Tensor, args: Args) -> Tensor:
    """Train both critics on one batch [B] with standard noise [B, A]; return the loss."""
    # Target policy smoothing: noise on the target action averages out sharp peaks of a critic. The smaller of the two
    # estimates is used, which counteracts the overestimation by noisy critics.
    # Only termination stops bootstrapping. After truncation the final observation still has a value, and
    # `next_obs` is that observation, not the first one of the next episode.
    with torch.no_grad():
        clip = args.target_noise_clip
        blur = (noise * args.target_policy_noise).clamp(-clip, clip)
        next_actions = (torch.tanh(agent.target_actor(batch["next_obs"])) + blur).clamp(-1, 1)
        next_pairs = torch.cat([batch["next_obs"], next_actions], dim=-1)
        first, second = (critic(next_pairs).squeeze(-1) for critic in agent.target_critics)
        next_values = torch.minimum(first, second)
        targets = batch["rewards"] + args.gamma * (1 - batch["terminated"]) * next_values
    pairs = torch.cat([batch["obs"], batch["actions"]], dim=-1)
    first, second = (critic(pairs).squeeze(-1) for critic in agent.critics)
    loss = (first - targets).square().mean() + (second - targets).square().mean()
    agent.critic_optimizer.zero_grad()
    loss.backward()
    agent.critic_optimizer.step()
    return loss.detach()


def update_actor(agent: Agent, batch: dict[str, Tensor], args: Args) -> Tensor:
    """Update the actor with the first critic, then all targets; return the actor's loss."""
    # The gradient passes through the critic to the actions, but only the actor is trained: the gradients of the
    # critic's weights are not computed, which saves time and leaves nothing to clear before its next step.
    actions = torch.tanh(agent.actor(batch["obs"]))
    loss = -agent.critics[0](torch.cat([batch["obs"], actions], dim=-1)).mean()
    agent.actor_optimizer.zero_grad()
    loss.backward(inputs=list(agent.actor.parameters()))
    agent.actor_optimizer.step()
    follow(agent.target_actor, agent.actor, args.tau)
    follow(agent.target_critics, agent.critics, args.tau)
    return loss.detach()


@torch.no_grad()
def follow(target: nn.Module, online: nn.Module, tau: float) -> None:
    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
        slow.lerp_(fast, tau)


def train(args: Args) -> tuple[Agent, float]:
    """Return the trained agent and the mean return of its last 20 training episodes."""
    env = Env(args)
    agent = Agent(env.obs_size, env.action_size, args)
    replay = Replay(args.buffer_size, env.obs_size, env.action_size)
    action_rng = np.random.default_rng(stream(args.seed, ACTIONS))
    replay_rng = np.random.default_rng(stream(args.seed, REPLAY))
    noise_rng = np.random.default_rng(stream(args.seed, UPDATE_NOISE))

    obs, updates, mean_return = env.reset(), 0, float("nan")
    for timestep in range(args.total_timesteps):
        if timestep < args.learning_starts:
            action = action_rng.uniform(-1, 1, env.action_size).astype(real())
        else:
            action = agent.act(obs, args.action_noise_sigma * action_rng.standard_normal(env.action_size))
        next_obs, reward, terminated, truncated = env.step(action)
        replay.add(obs, action, reward, next_obs, terminated)  # before the reset: the true final observation
        obs = env.reset() if terminated or truncated else next_obs

        if timestep >= args.learning_starts:
            batch = replay.batch(args.batch_size, replay_rng)
            shape = (args.batch_size, env.action_size)
            noise = torch.from_numpy(noise_rng.standard_normal(shape, dtype=real()))
            update_critics(agent, batch, noise, args)
            updates += 1
            if updates % args.policy_delay == 0:  # delayed policy updates
                update_actor(agent, batch, args)
        if env.finished:
            mean_return = float(np.mean(env.finished))
        if (timestep + 1) % 2000 == 0:
            print(f"{timestep + 1:>8} steps  return {mean_return:.1f}")
    return agent, mean_return


if __name__ == "__main__":
    torch.set_num_threads(1)  # small networks train fastest on one thread
    _, final_return = train(tyro.cli(Args, description=__doc__))
    print(f"mean return of the last 20 training episodes: {final_return:.1f}")
