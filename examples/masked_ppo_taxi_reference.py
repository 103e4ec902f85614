"""PPO with action masks on Taxi in one file: the whole loop, top to bottom, with nothing hidden.

    python examples/masked_ppo_taxi_reference.py --total-timesteps 100000

The environment says which actions are allowed: those that would bump into a wall, or let somebody in or out where
nobody can be, are not. PPO (arXiv:1707.06347) stays what it is; what a mask changes is said where it happens
(arXiv:2006.14171 on why it is right). The `rl_training` package does the same arithmetic faster; a test holds the two
together, down to the last digit of the parameters.
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
    env_id: str = "Taxi-v4"
    """Gymnasium id of an environment with numbered observations, discrete actions and their mask in `info`."""
    max_episode_steps: int | None = None
    """Time limit of an episode; none keeps the environment's own."""
    seed: int = 1
    """Root of all random numbers."""
    total_timesteps: int = 100_000
    """Environment steps, summed over environments."""
    num_envs: int = 8
    """Environments stepped side by side."""
    num_steps: int = 128
    """Steps per environment in one rollout."""
    batch_size: int = 256
    """Rows in one minibatch."""
    update_epochs: int = 10
    """Passes over each rollout."""
    learning_rate: float = 2.5e-3
    """Adam's step size, falling linearly to 0."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.95
    """Trace of the advantage estimate."""
    clip_coef: float = 0.2
    """Clipping of the probability ratio, falling linearly to 0."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss (mean squared error, no factor of one half)."""
    max_grad_norm: float = 0.5
    """Largest norm of the gradient."""


# ------------------------------------------------------------------------------------------------ random numbers
# One root seed; every consumer has a stream of its own, so that changing one never shifts another.


def stream(seed: int, *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=key)


EPISODES, ACTIONS, MINIBATCHES = 0, 2, 3


# ------------------------------------------------------------------------------------------------ networks
# An observation is the number of a place among `num_places` with nothing in between, so networks see it one-hot.


def linear(fan_in: int, fan_out: int, gain: float, generator: torch.Generator) -> nn.Linear:
    """Orthogonal weights, zero bias. The policy's last layer has a tiny gain: the first policy is nearly uniform."""
    layer = nn.Linear(fan_in, fan_out)
    nn.init.orthogonal_(layer.weight, gain=gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """Two separate networks, one for the policy and one for the value."""

    def __init__(self, num_places: int, num_actions: int, generator: torch.Generator) -> None:
        super().__init__()
        gain = 2**0.5
        self.num_places = num_places
        self.actor = nn.Sequential(
            linear(num_places, 64, gain, generator),
            nn.Tanh(),
            linear(64, 64, gain, generator),
            nn.Tanh(),
            linear(64, num_actions, 0.01, generator),
        )
        self.critic = nn.Sequential(
            linear(num_places, 64, gain, generator),
            nn.Tanh(),
            linear(64, 64, gain, generator),
            nn.Tanh(),
            linear(64, 1, 1.0, generator),
        )

    def one_hot(self, obs: Tensor) -> Tensor:
        return F.one_hot(obs, self.num_places).to(torch.get_default_dtype())

    def value(self, obs: Tensor) -> Tensor:
        """Value a place, whatever is allowed there: masks are the policy's concern."""
        return self.critic(self.one_hot(obs)).squeeze(-1)

    def logprobs(self, obs: Tensor, masks: Tensor) -> Tensor:
        """Return log-probabilities [B, A] for masks [B, A], true where an action is allowed.

        The logits of the others are replaced before anything else is done: their probability is exactly 0, the rest
        share 1 among them, and no gradient reaches what was replaced. Minus infinity would do the same, but 0 times
        minus infinity, in the entropy, is no number.
        """
        return F.log_softmax(self.actor(self.one_hot(obs)).masked_fill(~masks, -1e9), dim=-1)

    def act(self, obs: Tensor, masks: Tensor, uniform: np.ndarray) -> tuple[Tensor, Tensor]:
        """Sample one action per row by inverting the cumulative distribution at a uniform number."""
        logprobs = self.logprobs(obs, masks)
        cumulative = logprobs.exp().cumsum(-1)
        cumulative = cumulative / cumulative[:, -1:]  # a sum rounded below 1 could end in a forbidden action
        actions = (cumulative <= torch.as_tensor(uniform)[:, None]).sum(-1)
        return actions, logprobs.gather(-1, actions[:, None]).squeeze(-1)

    def evaluate(self, obs: Tensor, masks: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The masks are those the actions were chosen under: without them, it would be another policy's ratio."""
        logprobs = self.logprobs(obs, masks)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(-1, actions[:, None]).squeeze(-1), entropy, self.value(obs)


# ------------------------------------------------------------------------------------------------ environments


class SeededEpisodes(gym.Wrapper):
    """Environment i. Its episode k always starts from the same seed."""

    def __init__(self, args: Args, i: int) -> None:
        limit = {} if args.max_episode_steps is None else {"max_episode_steps": args.max_episode_steps}
        super().__init__(gym.make(args.env_id, **limit))
        self.seed, self.i = args.seed, i
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[int, dict]:
        self.episode += 1
        block, place = divmod(self.episode, 64)  # seeds are made 64 at a time
        number = stream(self.seed, EPISODES, self.i, block).generate_state(64)[place]
        return self.env.reset(seed=int(number))


class Envs:
    """All environments, where they stand (`obs` [N]) and what is allowed there (`masks` [N, A]).

    An environment whose episode ends begins the next one in the same step, so that what a step returns belongs to the
    new episode, `info["action_mask"]` too; only `info["final_obs"]` is of the old one. What was allowed there is not
    asked: nobody acts in it.
    """

    def __init__(self, args: Args) -> None:
        self.envs = gym.vector.SyncVectorEnv(
            [lambda i=i: SeededEpisodes(args, i) for i in range(args.num_envs)],
            autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
        )
        self.returns = np.zeros(args.num_envs)
        self.finished: deque[float] = deque(maxlen=100)
        self.see(*self.envs.reset())

    def see(self, obs: np.ndarray, info: dict) -> None:
        assert info.get("_action_mask", np.False_).all(), "every environment must tell a mask at every step"
        self.obs = torch.as_tensor(obs)
        self.masks = torch.as_tensor(info["action_mask"] != 0)

    def step(self, actions: Tensor) -> tuple[np.ndarray, np.ndarray, dict[int, int]]:
        """Return rewards [N], which episodes ended [N], and the last observation of those that the clock stopped."""
        obs, rewards, terminated, truncated, info = self.envs.step(actions.numpy())
        self.see(obs, info)
        self.returns += rewards
        dones = terminated | truncated
        self.finished.extend(self.returns[dones].tolist())
        self.returns[dones] = 0.0
        stopped = np.flatnonzero(truncated & ~terminated)
        return rewards, dones, {int(i): int(info["final_obs"][i]) for i in stopped}


# ------------------------------------------------------------------------------------------------ one rollout


@dataclass
class Rollout:
    """Everything [T, N]; `final_values` is what an episode's last observation is worth: 0 unless it was cut off.

    `masks` [T, N, A] are kept as the observations are: the update must see what the actor saw.
    """

    obs: Tensor
    masks: Tensor
    actions: Tensor
    logprobs: Tensor
    rewards: Tensor
    dones: Tensor
    values: Tensor
    final_values: Tensor
    last_value: Tensor


@torch.no_grad()
def collect(agent: Agent, envs: Envs, args: Args, rng: np.random.Generator) -> Rollout:
    """Step all environments `num_steps` times, from where they stand."""
    shape = (args.num_steps, args.num_envs)
    rollout = Rollout(
        obs=torch.zeros(shape, dtype=torch.long),
        masks=torch.zeros(*shape, envs.masks.shape[1], dtype=torch.bool),
        actions=torch.zeros(shape, dtype=torch.long),
        logprobs=torch.zeros(shape),
        rewards=torch.zeros(shape),
        dones=torch.zeros(shape, dtype=torch.bool),
        values=torch.zeros(shape),
        final_values=torch.zeros(shape),
        last_value=torch.zeros(args.num_envs),
    )
    for t in range(args.num_steps):
        rollout.obs[t], rollout.masks[t] = envs.obs, envs.masks
        rollout.actions[t], rollout.logprobs[t] = agent.act(envs.obs, envs.masks, rng.random(args.num_envs))
        rollout.values[t] = agent.value(envs.obs)
        rewards, dones, stopped = envs.step(rollout.actions[t])
        rollout.rewards[t], rollout.dones[t] = torch.as_tensor(rewards), torch.as_tensor(dones)
        for i, final_obs in stopped.items():  # the clock stopped it: the future still has value
            rollout.final_values[t, i] = agent.value(torch.tensor([final_obs]))[0]
    rollout.last_value = agent.value(envs.obs)
    return rollout


def advantages_and_returns(rollout: Rollout, gamma: float, gae_lambda: float) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation, arXiv:1506.02438; nothing crosses an episode's end."""
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
    """The clipped objective, the value error and the entropy bonus of one minibatch [B]."""
    logprobs, entropy, values = agent.evaluate(batch["obs"], batch["masks"], batch["actions"])
    advantages = batch["advantages"]
    if len(advantages) > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = (logprobs - batch["logprobs"]).exp()
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    policy_loss = -torch.minimum(advantages * ratio, advantages * clipped).mean()
    value_loss = (values - batch["returns"]).square().mean()
    return policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy.mean()


def update(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    fraction: float,
    args: Args,
    rng: np.random.Generator,
) -> None:
    """Several epochs of minibatches over one rollout; `fraction` of the budget is used up."""
    optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - fraction)
    clip_coef = args.clip_coef * (1 - fraction)
    advantages, returns = advantages_and_returns(rollout, args.gamma, args.gae_lambda)
    rows = {
        "obs": rollout.obs.flatten(),
        "masks": rollout.masks.flatten(0, 1),
        "actions": rollout.actions.flatten(),
        "logprobs": rollout.logprobs.flatten(),
        "advantages": advantages.flatten(),
        "returns": returns.flatten(),
    }
    count = len(rows["actions"])
    for _ in range(args.update_epochs):
        # a single minibatch needs no shuffling: its order changes nothing
        order = torch.arange(count) if args.batch_size >= count else torch.as_tensor(rng.permutation(count))
        for start in range(0, count, args.batch_size):
            index = order[start : start + args.batch_size]
            loss = loss_on(agent, {name: rows[name][index] for name in rows}, clip_coef, args)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def train(args: Args) -> tuple[Agent, float]:
    """Return the trained agent and the mean return of its last 100 training episodes."""
    envs = Envs(args)
    obs_space, action_space = envs.envs.single_observation_space, envs.envs.single_action_space
    assert isinstance(obs_space, gym.spaces.Discrete), "this script is for numbered observations"
    assert isinstance(action_space, gym.spaces.Discrete), "this script is for discrete actions"
    agent = Agent(int(obs_space.n), int(action_space.n), torch.Generator().manual_seed(args.seed))
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    action_rng = np.random.default_rng(stream(args.seed, ACTIONS))
    minibatch_rng = np.random.default_rng(stream(args.seed, MINIBATCHES))

    timesteps, mean_return = 0, float("nan")
    while timesteps < args.total_timesteps:
        rollout = collect(agent, envs, args, action_rng)
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
