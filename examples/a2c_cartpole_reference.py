"""A2C on CartPole in one file: the whole loop, top to bottom, with nothing hidden.

    python examples/a2c_cartpole_reference.py --total-timesteps 500000

The synchronous form of A3C (arXiv:1602.01783): short rollouts, one gradient step on each. The `rl_training` package
computes the same update faster; a test checks that both give the same parameters, to the last digit.
"""

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
    total_timesteps: int = 500_000
    """Environment steps, summed over environments."""
    num_envs: int = 8
    """Number of parallel environments."""
    num_steps: int = 5
    """Steps per environment in one rollout."""
    learning_rate: float = 7e-4
    """Learning rate (RMSprop)."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 1.0
    """Lambda of generalized advantage estimation; 1 uses the full returns of the rollout."""
    normalize_advantage: bool = False
    """Normalize the advantages of each rollout to mean 0 and standard deviation 1."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss (mean squared error, no factor of one half)."""
    max_grad_norm: float = 0.5
    """Maximum norm of the gradient."""


# ------------------------------------------------------------------------------------------------ random numbers
# One root seed; every consumer has its own stream, so that changing one does not affect another.


def stream(seed: int, *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=key)


EPISODES, ACTIONS = 0, 2


# ------------------------------------------------------------------------------------------------ networks


def linear(fan_in: int, fan_out: int, gain: float, generator: torch.Generator) -> nn.Linear:
    """Orthogonal weights, zero bias. A small gain in the last layer makes the initial policy nearly uniform."""
    layer = nn.Linear(fan_in, fan_out)
    nn.init.orthogonal_(layer.weight, gain=gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """Two separate networks, one for the policy and one for the value."""

    def __init__(self, obs_size: int, num_actions: int, generator: torch.Generator) -> None:
        super().__init__()
        gain = 2**0.5
        self.actor = nn.Sequential(
            linear(obs_size, 64, gain, generator),
            nn.Tanh(),
            linear(64, 64, gain, generator),
            nn.Tanh(),
            linear(64, num_actions, 0.01, generator),
        )
        self.critic = nn.Sequential(
            linear(obs_size, 64, gain, generator),
            nn.Tanh(),
            linear(64, 64, gain, generator),
            nn.Tanh(),
            linear(64, 1, 1.0, generator),
        )

    def value(self, obs: Tensor) -> Tensor:
        return self.critic(obs).squeeze(-1)

    def act(self, obs: Tensor, uniform: np.ndarray) -> Tensor:
        """Sample one action per row by inverting the cumulative distribution at a uniform number."""
        cumulative = F.softmax(self.actor(obs), dim=-1).cumsum(-1)
        # rounded probabilities may sum to less than the largest uniform numbers: those select the last action
        return (cumulative <= torch.as_tensor(uniform)[:, None]).sum(-1).clamp(max=cumulative.shape[1] - 1)

    def evaluate(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logprobs = F.log_softmax(self.actor(obs), dim=-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(-1, actions[:, None]).squeeze(-1), entropy, self.value(obs)


# ------------------------------------------------------------------------------------------------ environments


class Envs:
    """A plain list of environments. Episode k of environment i always starts from the same seed."""

    def __init__(self, args: Args) -> None:
        limit = {} if args.max_episode_steps is None else {"max_episode_steps": args.max_episode_steps}
        self.envs = [gym.make(args.env_id, **limit) for _ in range(args.num_envs)]
        self.seed = args.seed
        self.episode = [-1] * args.num_envs
        self.returns = [0.0] * args.num_envs
        self.finished: deque[float] = deque(maxlen=100)

    def reset(self, i: int) -> np.ndarray:
        self.episode[i] += 1
        self.returns[i] = 0.0
        block, place = divmod(self.episode[i], 64)  # seeds are made 64 at a time
        seed = stream(self.seed, EPISODES, i, block).generate_state(64)[place]
        return self.envs[i].reset(seed=int(seed))[0]


# ------------------------------------------------------------------------------------------------ one rollout


@dataclass
class Rollout:
    """Everything [T, N]; `final_values` is the value of the final observation of a truncated episode, else 0."""

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    dones: Tensor
    values: Tensor
    final_values: Tensor
    last_value: Tensor


@torch.no_grad()
def collect(agent: Agent, envs: Envs, obs: np.ndarray, args: Args, rng: np.random.Generator) -> Rollout:
    """Step all environments `num_steps` times; `obs` [N, ...] is updated in place."""
    shape = (args.num_steps, args.num_envs)
    rollout = Rollout(
        obs=torch.zeros(*shape, obs.shape[1]),
        actions=torch.zeros(shape, dtype=torch.long),
        rewards=torch.zeros(shape),
        dones=torch.zeros(shape, dtype=torch.bool),
        values=torch.zeros(shape),
        final_values=torch.zeros(shape),
        last_value=torch.zeros(args.num_envs),
    )
    for t in range(args.num_steps):
        rollout.obs[t] = torch.as_tensor(obs)
        rollout.actions[t] = agent.act(rollout.obs[t], rng.random(args.num_envs))
        rollout.values[t] = agent.value(rollout.obs[t])
        for i, env in enumerate(envs.envs):
            next_obs, reward, terminated, truncated, _ = env.step(int(rollout.actions[t, i]))
            rollout.rewards[t, i] = float(reward)
            envs.returns[i] += float(reward)
            if terminated or truncated:
                rollout.dones[t, i] = True
                if truncated and not terminated:  # truncated: bootstrap from the final observation
                    rollout.final_values[t, i] = agent.value(torch.as_tensor(next_obs).to(rollout.obs))
                envs.finished.append(envs.returns[i])
                next_obs = envs.reset(i)
            obs[i] = next_obs
    rollout.last_value = agent.value(torch.as_tensor(obs).to(rollout.obs))
    return rollout


def advantages_and_returns(rollout: Rollout, gamma: float, gae_lambda: float) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation, arXiv:1506.02438; it stops at the end of an episode."""
    advantages = torch.zeros_like(rollout.rewards)
    trace = torch.zeros_like(rollout.last_value)
    next_value = rollout.last_value
    for t in reversed(range(len(advantages))):
        done = rollout.dones[t]
        follows = torch.where(done, rollout.final_values[t], next_value)
        delta = rollout.rewards[t] + gamma * follows - rollout.values[t]
        trace = delta + gamma * gae_lambda * (~done) * trace
        advantages[t] = trace
        next_value = rollout.values[t]
    return advantages, advantages + rollout.values


# ------------------------------------------------------------------------------------------------ the update


def loss_on(agent: Agent, batch: dict[str, Tensor], args: Args) -> Tensor:
    """The policy gradient, the value error and the entropy bonus of one rollout [B]."""
    logprobs, entropy, values = agent.evaluate(batch["obs"], batch["actions"])
    advantages = batch["advantages"]
    if args.normalize_advantage and len(advantages) > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy_loss = -(advantages * logprobs).mean()
    value_loss = (values - batch["returns"]).square().mean()
    return policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy.mean()


def update(agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout, args: Args) -> None:
    """One step on the whole rollout; it is the policy gradient only for the policy that collected the data."""
    advantages, returns = advantages_and_returns(rollout, args.gamma, args.gae_lambda)
    batch = {
        "obs": rollout.obs.flatten(0, 1),
        "actions": rollout.actions.flatten(),
        "advantages": advantages.flatten(),
        "returns": returns.flatten(),
    }
    loss = loss_on(agent, batch, args)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
    optimizer.step()


def train(args: Args) -> tuple[Agent, float]:
    """Return the trained agent and the mean return of its last 100 training episodes."""
    envs = Envs(args)
    obs_space, action_space = envs.envs[0].observation_space, envs.envs[0].action_space
    assert isinstance(obs_space, gym.spaces.Box), "this script is for vector observations"
    assert isinstance(action_space, gym.spaces.Discrete), "this script is for discrete actions"
    agent = Agent(obs_space.shape[0], int(action_space.n), torch.Generator().manual_seed(args.seed))
    # a large eps, added after the square root, keeps steps small for tiny gradients
    optimizer = torch.optim.RMSprop(agent.parameters(), lr=args.learning_rate, alpha=0.99, eps=1e-5)
    action_rng = np.random.default_rng(stream(args.seed, ACTIONS))

    obs = np.stack([envs.reset(i) for i in range(args.num_envs)])
    timesteps, mean_return = 0, float("nan")
    while timesteps < args.total_timesteps:
        rollout = collect(agent, envs, obs, args, action_rng)
        timesteps += args.num_steps * args.num_envs
        update(agent, optimizer, rollout, args)
        if envs.finished:
            mean_return = float(np.mean(envs.finished))
        if (timesteps // (args.num_steps * args.num_envs)) % 500 == 0:
            print(f"{timesteps:>8} steps  return {mean_return:.1f}")
    return agent, mean_return


if __name__ == "__main__":
    torch.set_num_threads(1)  # small networks train fastest on one thread
    _, final_return = train(tyro.cli(Args, description=__doc__))
    print(f"mean return of the last 100 training episodes: {final_return:.1f}")
