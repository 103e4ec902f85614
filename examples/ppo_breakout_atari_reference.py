"""PPO on Atari Breakout in one file: the whole loop, from the screen to the update, with nothing hidden.

    pip install ale-py opencv-python-headless
    python examples/ppo_breakout_atari_reference.py --total-timesteps 10000000

Reads like the paper (arXiv:1707.06347) plus the details that make it work on pixels. The `rl_training` package computes
the same update faster; tests check that both give the same pixels, and the same parameters to the last digit.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn


@dataclass
class Args:
    env_id: str = "BreakoutNoFrameskip-v4"
    """Gymnasium id of an Atari game without frame skip."""
    seed: int = 1
    """Root seed of all random streams."""
    total_timesteps: int = 10_000_000
    """Steps of four frames each, summed over games."""
    num_envs: int = 8
    """Number of parallel games."""
    num_steps: int = 128
    """Steps per game in one rollout."""
    batch_size: int = 256
    """Rows in one minibatch."""
    update_epochs: int = 4
    """Passes over each rollout."""
    learning_rate: float = 2.5e-4
    """Learning rate (Adam); it decays linearly to 0."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation."""
    clip_coef: float = 0.1
    """Clipping range of the probability ratio; it decays linearly to 0."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss (mean squared error, no factor of one half)."""
    max_grad_norm: float = 0.5
    """Maximum norm of the gradient."""


# ------------------------------------------------------------------------------------------------ random numbers
# One root seed; every consumer has its own stream, so that changing one does not affect another.


def stream(seed: int, *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=key)


EPISODES, ACTIONS, MINIBATCHES = 0, 2, 3


# ------------------------------------------------------------------------------------------------ the game


class AtariGame(gym.Wrapper):
    """Actions last 4 frames; observations are the last 4 screens, [4, 84, 84] in grayscale, oldest first.

    Rewards are the raw score. `info["life_lost"]` marks a lost life; the game itself continues.
    """

    def __init__(self, env_id: str, noop_max: int = 30) -> None:
        # imported here, so that the rest of this file works without them
        import ale_py
        import cv2

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        super().__init__(gym.make(env_id, obs_type="grayscale"))
        assert self.env.unwrapped._frameskip == 1, "use an id such as BreakoutNoFrameskip-v4"
        self.cv2, self.noop_max = cv2, noop_max
        meanings = self.env.unwrapped.get_action_meanings()
        self.noop = meanings.index("NOOP")
        self.fire = meanings.index("FIRE") if "FIRE" in meanings else None
        self.observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Start a game: a random number of no-ops, then FIRE, which many games wait for."""
        if seed is not None:  # the seed only affects the start; the rest is deterministic
            self.rng = np.random.default_rng(seed)
        self.screen, info = self.env.reset()
        waits = int(self.rng.integers(1, self.noop_max + 1)) if self.noop_max > 0 else 0
        for action in [self.noop] * waits + ([] if self.fire is None else [self.fire]):
            self.screen, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                self.screen, info = self.env.reset()
        self.lives, self.must_fire = info["lives"], False
        self.stack = np.stack([self.small(self.screen)] * 4)  # repeat the first frame
        return self.stack, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        # after a lost life the game waits for FIRE, which an untrained policy may never press
        if self.must_fire:
            action = self.fire
        score = 0.0
        for _ in range(4):
            before = self.screen
            self.screen, reward, terminated, truncated, info = self.env.step(action)
            score += float(reward)
            if terminated or truncated:
                break
        life_lost = info["lives"] < self.lives and not terminated
        self.lives, self.must_fire = info["lives"], life_lost and self.fire is not None
        # maximum over the last two frames: some games draw their sprites alternately
        newest = self.small(np.maximum(before, self.screen))
        self.stack = np.concatenate([self.stack[1:], newest[None]])
        return self.stack, score, terminated, truncated, {"life_lost": life_lost}

    def small(self, screen: np.ndarray) -> np.ndarray:
        return self.cv2.resize(screen, (84, 84), interpolation=self.cv2.INTER_AREA)


class Envs:
    """A plain list of games. Game k of environment i always starts from the same seed."""

    def __init__(self, build: Callable[[], gym.Env], args: Args) -> None:
        self.envs = [build() for _ in range(args.num_envs)]
        self.seed = args.seed
        self.episode = [-1] * args.num_envs
        self.scores = [0.0] * args.num_envs
        self.finished: deque[float] = deque(maxlen=100)

    def reset(self, i: int) -> np.ndarray:
        self.episode[i] += 1
        self.scores[i] = 0.0
        block, place = divmod(self.episode[i], 64)  # seeds are made 64 at a time
        seed = stream(self.seed, EPISODES, i, block).generate_state(64)[place]
        return self.envs[i].reset(seed=int(seed))[0]


# ------------------------------------------------------------------------------------------------ network


def orthogonal(layer: nn.Conv2d | nn.Linear, gain: float, generator: torch.Generator) -> nn.Module:
    """Orthogonal weights, zero bias. A small gain in the last layer makes the initial policy nearly uniform."""
    nn.init.orthogonal_(layer.weight, gain=gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """Three convolutions (doi:10.1038/nature14236) and a layer of 512, shared by policy and value."""

    def __init__(self, obs_shape: tuple[int, ...], num_actions: int, generator: torch.Generator) -> None:
        super().__init__()
        gain = 2**0.5
        convolutions = nn.Sequential(
            orthogonal(nn.Conv2d(obs_shape[0], 32, 8, stride=4), gain, generator),
            nn.ReLU(),
            orthogonal(nn.Conv2d(32, 64, 4, stride=2), gain, generator),
            nn.ReLU(),
            orthogonal(nn.Conv2d(64, 64, 3), gain, generator),
            nn.ReLU(),
            nn.Flatten(),
        )
        size = convolutions(torch.zeros(1, *obs_shape)).shape[1]  # 3136 for 84 x 84
        self.encoder = nn.Sequential(
            convolutions, orthogonal(nn.Linear(size, 512), gain, generator), nn.ReLU()
        )
        self.actor = orthogonal(nn.Linear(512, num_actions), 0.01, generator)
        self.critic = orthogonal(nn.Linear(512, 1), 1.0, generator)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities [B, A] of all actions and values [B]; bytes [B, 4, 84, 84] are converted to floats here."""
        features = self.encoder(obs / 255)
        return F.log_softmax(self.actor(features), dim=-1), self.critic(features).squeeze(-1)


def sample(logprobs: Tensor, uniform: np.ndarray) -> Tensor:
    """Draw one action per row by inverting the cumulative distribution at a uniform number."""
    cumulative = logprobs.exp().cumsum(-1)
    return (cumulative <= torch.as_tensor(uniform)[:, None]).sum(-1).clamp(max=logprobs.shape[1] - 1)


# ------------------------------------------------------------------------------------------------ one rollout


@dataclass
class Rollout:
    """Everything [T, N]; `stops` marks ends of games and lost lives, which cut the advantage estimate.

    `final_values` is the value of the final observation of a truncated game, else 0.
    """

    obs: Tensor
    actions: Tensor
    logprobs: Tensor
    rewards: Tensor
    stops: Tensor
    values: Tensor
    final_values: Tensor
    last_value: Tensor


@torch.no_grad()
def collect(agent: Agent, envs: Envs, obs: np.ndarray, args: Args, rng: np.random.Generator) -> Rollout:
    """Step all games `num_steps` times; `obs` [N, ...] is updated in place."""
    shape = (args.num_steps, args.num_envs)
    rollout = Rollout(
        obs=torch.zeros(*shape, *obs.shape[1:], dtype=torch.uint8),
        actions=torch.zeros(shape, dtype=torch.long),
        logprobs=torch.zeros(shape),
        rewards=torch.zeros(shape),
        stops=torch.zeros(shape, dtype=torch.bool),
        values=torch.zeros(shape),
        final_values=torch.zeros(shape),
        last_value=torch.zeros(args.num_envs),
    )
    for t in range(args.num_steps):
        rollout.obs[t] = torch.as_tensor(obs)
        logprobs, rollout.values[t] = agent(rollout.obs[t])
        rollout.actions[t] = sample(logprobs, rng.random(args.num_envs))
        rollout.logprobs[t] = logprobs.gather(-1, rollout.actions[t][:, None]).squeeze(-1)
        for i, env in enumerate(envs.envs):
            next_obs, reward, terminated, truncated, info = env.step(int(rollout.actions[t, i]))
            envs.scores[i] += float(reward)  # report the raw score, learn from its sign
            rollout.rewards[t, i] = float(np.sign(reward))
            life_lost = info.get("life_lost", False)
            rollout.stops[t, i] = terminated or truncated or life_lost
            # bootstrap only if the game was truncated
            if truncated and not terminated and not life_lost:
                rollout.final_values[t, i] = agent(torch.as_tensor(next_obs[None]))[1][0]
            if terminated or truncated:  # a lost life does not end the game
                envs.finished.append(envs.scores[i])
                next_obs = envs.reset(i)
            obs[i] = next_obs
    rollout.last_value = agent(torch.as_tensor(obs))[1]
    return rollout


def advantages_and_returns(rollout: Rollout, gamma: float, gae_lambda: float) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation, arXiv:1506.02438; it stops at the end of a game or a life."""
    advantages = torch.zeros_like(rollout.rewards)
    trace = torch.zeros_like(rollout.last_value)
    next_value = rollout.last_value
    for t in reversed(range(len(advantages))):
        stop = rollout.stops[t]
        follows = torch.where(stop, rollout.final_values[t], next_value)
        delta = rollout.rewards[t] + gamma * follows - rollout.values[t]
        trace = delta + gamma * gae_lambda * (~stop) * trace
        advantages[t] = trace
        next_value = rollout.values[t]
    return advantages, advantages + rollout.values


# ------------------------------------------------------------------------------------------------ the update


def loss_on(agent: Agent, batch: dict[str, Tensor], clip_coef: float, args: Args) -> Tensor:
    """The clipped objective, the value error and the entropy bonus of one minibatch [B]."""
    logprobs, values = agent(batch["obs"])
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    advantages = batch["advantages"]
    if len(advantages) > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    chosen = logprobs.gather(-1, batch["actions"][:, None]).squeeze(-1)
    ratio = (chosen - batch["logprobs"]).exp()
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
    """Several epochs of minibatches over one rollout; `fraction` is the completed part of the budget."""
    optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - fraction)
    clip_coef = args.clip_coef * (1 - fraction)
    advantages, returns = advantages_and_returns(rollout, args.gamma, args.gae_lambda)
    rows = {
        "obs": rollout.obs.flatten(0, 1),
        "actions": rollout.actions.flatten(),
        "logprobs": rollout.logprobs.flatten(),
        "advantages": advantages.flatten(),
        "returns": returns.flatten(),
    }
    count = len(rows["actions"])
    for _ in range(args.update_epochs):
        # a single minibatch needs no shuffling
        order = torch.arange(count) if args.batch_size >= count else torch.as_tensor(rng.permutation(count))
        for start in range(0, count, args.batch_size):
            index = order[start : start + args.batch_size]
            loss = loss_on(agent, {name: rows[name][index] for name in rows}, clip_coef, args)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def train(agent: Agent, envs: Envs, args: Args) -> float:
    """Train the agent in place; return the mean score of its last 100 games."""
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    action_rng = np.random.default_rng(stream(args.seed, ACTIONS))
    minibatch_rng = np.random.default_rng(stream(args.seed, MINIBATCHES))

    obs = np.stack([envs.reset(i) for i in range(args.num_envs)])
    timesteps, mean_score = 0, float("nan")
    while timesteps < args.total_timesteps:
        rollout = collect(agent, envs, obs, args, action_rng)
        timesteps += args.num_steps * args.num_envs
        update(agent, optimizer, rollout, min(timesteps / args.total_timesteps, 1.0), args, minibatch_rng)
        if envs.finished:
            mean_score = float(np.mean(envs.finished))
        if (timesteps // (args.num_steps * args.num_envs)) % 10 == 0:
            print(f"{timesteps:>8} steps  score {mean_score:.1f}")
    return mean_score


def main(args: Args) -> None:
    envs = Envs(lambda: AtariGame(args.env_id), args)
    obs_space, action_space = envs.envs[0].observation_space, envs.envs[0].action_space
    agent = Agent(obs_space.shape, int(action_space.n), torch.Generator().manual_seed(args.seed))
    mean_score = train(agent, envs, args)
    print(f"mean return of the last 100 training episodes: {mean_score:.1f}")


if __name__ == "__main__":
    torch.set_num_threads(1)  # the same result on any machine; more threads may be faster if cores are idle
    main(tyro.cli(Args, description=__doc__))
