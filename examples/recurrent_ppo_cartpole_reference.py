"""PPO with an LSTM on CartPole without velocities, in one file: the whole loop, top to bottom, with nothing hidden.

    python examples/recurrent_ppo_cartpole_reference.py --total-timesteps 100000

One observation does not show the velocity of the pole, but two in a row do, so the agent needs memory. The algorithm
is PPO (arXiv:1707.06347); comments mark what memory changes. The `rl_training` package computes the
same update faster; a test checks that both give the same parameters, to the last digit.
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
    max_episode_steps: int = 500
    """Time limit of an episode."""
    seed: int = 1
    """Root seed of all random streams."""
    total_timesteps: int = 100_000
    """Environment steps, summed over environments."""
    num_envs: int = 8
    """Number of parallel environments."""
    num_steps: int = 128
    """Steps per environment in one rollout."""
    sequence_length: int = 32
    """Length of backpropagation through time; must divide num_steps and batch_size."""
    batch_size: int = 256
    """Rows in one minibatch: batch_size / sequence_length sequences."""
    update_epochs: int = 10
    """Passes over each rollout."""
    core_size: int = 64
    """Size of the LSTM's output, and of its cell."""
    learning_rate: float = 2e-3
    """Learning rate (Adam); it decays linearly to 0."""
    gamma: float = 0.98
    """Discount."""
    gae_lambda: float = 0.9
    """Lambda of generalized advantage estimation."""
    clip_coef: float = 0.2
    """Clipping range of the probability ratio; it decays linearly to 0."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    vf_coef: float = 0.01
    """Weight of the value loss. Small, because the core is shared and the value loss could dominate."""
    max_grad_norm: float = 0.5
    """Maximum norm of the gradient."""


# ------------------------------------------------------------------------------------------------ random numbers
# One root seed; every consumer has its own stream, so that changing one does not affect another.


def stream(seed: int, *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=key)


EPISODES, ACTIONS, MINIBATCHES = 0, 2, 3


# ------------------------------------------------------------------------------------------------ networks
# A state [B, 2, H] holds the output and the cell of the LSTM for each row. The initial state is zero.


class LSTM(nn.Module):
    """One step of a long short-term memory. The cell is only scaled and added to, so gradients survive many steps."""

    def __init__(self, input_size: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        # rows are the four gates, one below the other; torch has two biases, although one would be enough
        self.weight_ih = nn.Parameter(torch.empty(4 * size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(4 * size, size))
        self.bias_ih = nn.Parameter(torch.zeros(4 * size))
        self.bias_hh = nn.Parameter(torch.zeros(4 * size))
        for weight in (self.weight_ih, self.weight_hh):
            nn.init.orthogonal_(weight, generator=generator)

    def forward(self, inputs: Tensor, state: Tensor) -> Tensor:
        """Return the state after seeing inputs [B, D]; its first part is the output."""
        output, cell = state.unbind(1)
        gates = inputs @ self.weight_ih.T + self.bias_ih + output @ self.weight_hh.T + self.bias_hh
        let_in, keep, candidate, let_out = gates.chunk(4, dim=-1)
        cell = keep.sigmoid() * cell + let_in.sigmoid() * candidate.tanh()
        return torch.stack([let_out.sigmoid() * cell.tanh(), cell], dim=1)


def linear(fan_in: int, fan_out: int, gain: float, generator: torch.Generator) -> nn.Linear:
    """Orthogonal weights, zero bias. A small gain in the last layer makes the initial policy nearly uniform."""
    layer = nn.Linear(fan_in, fan_out)
    nn.init.orthogonal_(layer.weight, gain=gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """One LSTM and two networks that read its output: one for the policy and one for the value."""

    def __init__(self, obs_size: int, num_actions: int, core_size: int, generator: torch.Generator) -> None:
        super().__init__()
        gain = 2**0.5
        self.core = LSTM(obs_size, core_size, generator)
        hidden = [linear(core_size, 64, gain, generator), nn.Tanh()]
        self.actor = nn.Sequential(*hidden, linear(64, num_actions, 0.01, generator))
        hidden = [linear(core_size, 64, gain, generator), nn.Tanh()]
        self.critic = nn.Sequential(*hidden, linear(64, 1, 1.0, generator))

    def value(self, obs: Tensor, state: Tensor) -> Tensor:
        """Return the values of observations, given states. The states are not changed."""
        return self.critic(self.core(obs, state)[:, 0]).squeeze(-1)

    def act(self, obs: Tensor, state: Tensor, uniform: np.ndarray) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return actions, log-probabilities, values, and the state after seeing `obs`.

        One action per row is sampled by inverting the cumulative distribution at a uniform number.
        """
        state = self.core(obs, state)
        logprobs = F.log_softmax(self.actor(state[:, 0]), dim=-1)
        cumulative = logprobs.exp().cumsum(-1)
        actions = (cumulative <= torch.as_tensor(uniform)[:, None]).sum(-1).clamp(max=logprobs.shape[1] - 1)
        values = self.critic(state[:, 0]).squeeze(-1)
        return actions, logprobs.gather(-1, actions[:, None]).squeeze(-1), values, state

    def evaluate(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Evaluate sequences [B, L], starting from the states [B, 2, H] before their first steps.

        The state is set to zero where an episode starts, as while acting, so no gradient crosses that border and a
        sequence may contain several episodes. No padding is needed.
        """
        state, outputs = batch["states"], []
        for t in range(batch["obs"].shape[1]):
            state = state * (~batch["starts"][:, t])[:, None, None]
            state = self.core(batch["obs"][:, t], state)
            outputs.append(state[:, 0])
        remembered = torch.stack(outputs, dim=1)  # the remaining layers process all steps at once
        logprobs = F.log_softmax(self.actor(remembered), dim=-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        values = self.critic(remembered).squeeze(-1)
        return logprobs.gather(-1, batch["actions"][..., None]).squeeze(-1), entropy, values


# ------------------------------------------------------------------------------------------------ environments


def make_env(args: Args) -> gym.Env:
    """CartPole with both velocities replaced by zeros."""
    env = gym.make("CartPole-v1", max_episode_steps=args.max_episode_steps)
    shown = np.array([1, 0, 1, 0], np.float32)
    return gym.wrappers.TransformObservation(env, lambda obs: obs * shown, env.observation_space)


class Envs:
    """A plain list of environments. Episode k of environment i always starts from the same seed."""

    def __init__(self, args: Args) -> None:
        self.envs = [make_env(args) for _ in range(args.num_envs)]
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
    """Everything [T, N]; `final_values` is the value of the final observation of a truncated episode, else 0.

    `states` [T / L, N, 2, H] are the states before the first step of each sequence.
    """

    obs: Tensor
    actions: Tensor
    logprobs: Tensor
    rewards: Tensor
    dones: Tensor
    values: Tensor
    final_values: Tensor
    last_value: Tensor
    states: Tensor


@torch.no_grad()
def collect(
    agent: Agent, envs: Envs, obs: np.ndarray, state: Tensor, args: Args, rng: np.random.Generator
) -> Rollout:
    """Step all environments `num_steps` times.

    `obs` [N, D] and `state` [N, 2, H] are updated in place, so that the next rollout continues in the middle of an
    episode.
    """
    shape = (args.num_steps, args.num_envs)
    rollout = Rollout(
        obs=torch.zeros(*shape, obs.shape[1]),
        actions=torch.zeros(shape, dtype=torch.long),
        logprobs=torch.zeros(shape),
        rewards=torch.zeros(shape),
        dones=torch.zeros(shape, dtype=torch.bool),
        values=torch.zeros(shape),
        final_values=torch.zeros(shape),
        last_value=torch.zeros(args.num_envs),
        states=torch.zeros(args.num_steps // args.sequence_length, *state.shape),
    )
    for t in range(args.num_steps):
        if t % args.sequence_length == 0:
            rollout.states[t // args.sequence_length] = state
        rollout.obs[t] = torch.as_tensor(obs)
        rollout.actions[t], rollout.logprobs[t], rollout.values[t], state[:] = agent.act(
            rollout.obs[t], state, rng.random(args.num_envs)
        )
        for i, env in enumerate(envs.envs):
            next_obs, reward, terminated, truncated, _ = env.step(int(rollout.actions[t, i]))
            rollout.rewards[t, i] = float(reward)
            envs.returns[i] += float(reward)
            if terminated or truncated:
                rollout.dones[t, i] = True
                if truncated and not terminated:
                    # truncated: bootstrap with the state after this episode's steps
                    final_obs = torch.as_tensor(next_obs[None]).to(rollout.obs)
                    rollout.final_values[t, i] = agent.value(final_obs, state[i : i + 1])[0]
                state[i] = 0.0  # the next episode starts with an empty memory
                envs.finished.append(envs.returns[i])
                next_obs = envs.reset(i)
            obs[i] = next_obs
    rollout.last_value = agent.value(torch.as_tensor(obs).to(rollout.obs), state)
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


def loss_on(agent: Agent, batch: dict[str, Tensor], clip_coef: float, args: Args) -> Tensor:
    """The clipped objective, the value error and the entropy bonus of one minibatch of sequences [B, L]."""
    logprobs, entropy, values = agent.evaluate(batch)
    advantages = batch["advantages"]
    if advantages.numel() > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = (logprobs - batch["logprobs"]).exp()
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    policy_loss = -torch.minimum(advantages * ratio, advantages * clipped).mean()
    value_loss = (values - batch["returns"]).square().mean()
    return policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy.mean()


def cut(column: Tensor, length: int) -> Tensor:
    """Return the sequences [S, L, ...] of a column [T, N, ...]: the first of every environment, then the second."""
    steps, num_envs = column.shape[:2]
    return column.view(steps // length, length, num_envs, *column.shape[2:]).transpose(1, 2).flatten(0, 1)


def update(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    fraction: float,
    args: Args,
    rng: np.random.Generator,
) -> None:
    """Several epochs of minibatches over one rollout; `fraction` is the completed part of the budget."""
    optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - fraction)
    clip_coef = args.clip_coef * (1 - fraction)
    advantages, returns = advantages_and_returns(rollout, args.gamma, args.gae_lambda)
    # an episode starts after the end of another; at the first step of the rollout the stored state is already zero
    starts = torch.cat([torch.zeros_like(rollout.dones[:1]), rollout.dones[:-1]])
    columns = {
        "obs": rollout.obs,
        "actions": rollout.actions,
        "starts": starts,
        "logprobs": rollout.logprobs,
        "advantages": advantages,
        "returns": returns,
    }
    sequences = {name: cut(column, args.sequence_length) for name, column in columns.items()}
    # stored while acting and not recomputed, so they soon belong to a slightly older network, and gradients stop there;
    # recomputing whole episodes for every minibatch would be far more expensive
    sequences["states"] = rollout.states.flatten(0, 1)
    count, size = len(sequences["states"]), args.batch_size // args.sequence_length
    for _ in range(args.update_epochs):
        order = torch.as_tensor(rng.permutation(count))  # whole sequences: each keeps its order
        for start in range(0, count, size):
            index = order[start : start + size]
            loss = loss_on(agent, {name: rows[index] for name, rows in sequences.items()}, clip_coef, args)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def train(args: Args) -> tuple[Agent, float]:
    """Return the trained agent and the mean return of its last 100 training episodes."""
    for name in ("num_steps", "batch_size"):
        assert getattr(args, name) % args.sequence_length == 0, f"sequence_length must divide {name}"
    envs = Envs(args)
    agent = Agent(4, 2, args.core_size, torch.Generator().manual_seed(args.seed))
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    action_rng = np.random.default_rng(stream(args.seed, ACTIONS))
    minibatch_rng = np.random.default_rng(stream(args.seed, MINIBATCHES))

    obs = np.stack([envs.reset(i) for i in range(args.num_envs)])
    state = torch.zeros(args.num_envs, 2, args.core_size)
    timesteps, mean_return = 0, float("nan")
    while timesteps < args.total_timesteps:
        rollout = collect(agent, envs, obs, state, args, action_rng)
        timesteps += args.num_steps * args.num_envs
        update(agent, optimizer, rollout, min(timesteps / args.total_timesteps, 1.0), args, minibatch_rng)
        if envs.finished:
            mean_return = float(np.mean(envs.finished))
        if (timesteps // (args.num_steps * args.num_envs)) % 10 == 0:
            print(f"{timesteps:>8} steps  return {mean_return:.1f}")
    return agent, mean_return


if __name__ == "__main__":
    torch.set_num_threads(1)  # small networks train fastest on one thread
    _, final_return = train(tyro.cli(Args, description=__doc__))
    print(f"mean return of the last 100 training episodes: {final_return:.1f}")
