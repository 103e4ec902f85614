"""DQN on Atari Breakout in one file: the whole loop, from the screen to the update, with nothing hidden.

    pip install ale-py opencv-python-headless
    python examples/dqn_breakout_atari_reference.py --total-timesteps 10000000

Reads like the paper (Mnih et al. 2015). The `rl_training` package computes the same update faster; tests check
that both give the same pixels, and the same parameters to the last digit.
"""

import copy
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

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
    """Steps of four frames each."""
    train_freq: int = 4
    """Steps between two updates."""
    learning_starts: int = 100_000
    """Steps with random actions before the first update."""
    batch_size: int = 32
    """Transitions in one update."""
    buffer_size: int = 100_000
    """Capacity of the replay buffer in transitions, about 7 KB each."""
    learning_rate: float = 1e-4
    """Learning rate (Adam)."""
    gamma: float = 0.99
    """Discount."""
    target_update_every_timesteps: int = 1_000
    """Steps between updates of the target network; each happens before a gradient update."""
    exploration_initial_eps: float = 1.0
    """Probability of a random action at the start."""
    exploration_final_eps: float = 0.01
    """Probability of a random action after exploration_fraction."""
    exploration_fraction: float = 0.1
    """Fraction of the budget over which that probability decays linearly."""
    max_grad_norm: float = 10.0
    """Maximum norm of the gradient."""


# ------------------------------------------------------------------------------------------------ random numbers
# One root seed; every consumer has its own stream, so that changing one does not affect another.


def stream(seed: int, *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=key)


EPISODES, ACTIONS, REPLAY = 0, 2, 7


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


class Env:
    """One game. Game k always starts from the same seed; `frames` are the current screens [84, 84]."""

    def __init__(self, game: gym.Env, args: Args) -> None:
        self.game, self.seed = game, args.seed
        self.episode = -1
        self.score = 0.0
        self.finished: deque[float] = deque(maxlen=100)

    def reset(self) -> None:
        self.episode += 1
        self.score = 0.0
        block, place = divmod(self.episode, 64)  # seeds are made 64 at a time
        seed = stream(self.seed, EPISODES, 0, block).generate_state(64)[place]  # 0: the only environment
        obs, _ = self.game.reset(seed=int(seed))
        # the first frame is repeated; copied, because a view would keep the whole stack in memory
        self.frames = (obs[0].copy(),) * len(obs)

    def step(self, action: int) -> tuple[float, bool, bool, bool]:
        """Return the reward and three flags: terminated, truncated, life lost."""
        obs, reward, terminated, truncated, info = self.game.step(action)
        self.frames = (*self.frames[1:], obs[-1].copy())
        self.score += float(reward)
        return float(reward), terminated, truncated, info.get("life_lost", False)


# ------------------------------------------------------------------------------------------------ network


def uniform(layer: nn.Conv2d | nn.Linear, generator: torch.Generator) -> nn.Module:
    """Torch's default uniform initialization, drawn from an explicit generator."""
    bound = layer.weight[0].numel() ** -0.5
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer


class QNetwork(nn.Module):
    """Three convolutions (doi:10.1038/nature14236), a layer of 512, and one value per action."""

    def __init__(self, obs_shape: tuple[int, ...], num_actions: int, generator: torch.Generator) -> None:
        super().__init__()
        convolutions = nn.Sequential(
            uniform(nn.Conv2d(obs_shape[0], 32, 8, stride=4), generator),
            nn.ReLU(),
            uniform(nn.Conv2d(32, 64, 4, stride=2), generator),
            nn.ReLU(),
            uniform(nn.Conv2d(64, 64, 3), generator),
            nn.ReLU(),
            nn.Flatten(),
        )
        size = convolutions(torch.zeros(1, *obs_shape)).shape[1]  # 3136 for 84 x 84
        self.encoder = nn.Sequential(convolutions, uniform(nn.Linear(size, 512), generator), nn.ReLU())
        self.values = uniform(nn.Linear(512, num_actions), generator)

    def forward(self, obs: Tensor) -> Tensor:
        """Values [B, A] of all actions; bytes [B, 4, 84, 84] are converted to floats here."""
        return self.values(self.encoder(obs / 255))


# ------------------------------------------------------------------------------------------------ replay


class Transition(NamedTuple):
    frames: tuple[np.ndarray, ...]
    """The first four are the observation, the last four the next observation."""
    action: int
    reward: float
    over: bool
    """Whether to stop bootstrapping: the game or a life was lost."""


class Replay:
    """A ring buffer of transitions; new ones replace the oldest.

    Consecutive transitions share frames, so each frame is stored once, not eight times.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity, self.written = capacity, 0
        self.rows: list[Transition] = []

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, row: Transition) -> None:
        if len(self.rows) < self.capacity:
            self.rows.append(row)
        else:
            self.rows[self.written % self.capacity] = row
        self.written += 1

    def batch(self, index: np.ndarray) -> dict[str, Tensor]:
        rows = [self.rows[i] for i in index]
        frames = torch.as_tensor(np.stack([np.stack(row.frames) for row in rows]))  # [B, 5, 84, 84]
        return {
            "obs": frames[:, :-1],
            "actions": torch.tensor([row.action for row in rows]),
            "rewards": torch.tensor([row.reward for row in rows]),
            "next_obs": frames[:, 1:],
            "over": torch.tensor([row.over for row in rows]),
        }


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
    network: nn.Module,
    frames: tuple[np.ndarray, ...],
    epsilon: float,
    num_actions: int,
    rng: np.random.Generator,
) -> int:
    # always draw both numbers, so that the random stream does not depend on the network
    explores = rng.random() < epsilon
    random_action = int(rng.integers(num_actions))
    if explores:
        return random_action
    return int(network(torch.as_tensor(np.stack(frames)[None])).argmax())


def collect(
    network: nn.Module, env: Env, replay: Replay, epsilon: float, args: Args, rng: np.random.Generator
) -> None:
    """Take `train_freq` steps and store them."""
    num_actions = int(env.game.action_space.n)
    for _ in range(args.train_freq):
        seen = env.frames
        action = act(network, seen, epsilon, num_actions, rng)
        reward, terminated, truncated, life_lost = env.step(action)
        # learn from the sign of the score; truncation is not stored, because it does not stop bootstrapping
        row = Transition(
            (*seen, env.frames[-1]), action, float(np.sign(reward)), over=terminated or life_lost
        )
        replay.add(row)
        if terminated or truncated:  # a lost life does not end the game
            env.finished.append(env.score)
            env.reset()


# ------------------------------------------------------------------------------------------------ the update


def loss_on(network: nn.Module, target: nn.Module, batch: dict[str, Tensor], args: Args) -> Tensor:
    """The Huber loss between the values of the actions taken and their one-step targets [B]."""
    with torch.no_grad():
        next_value = target(batch["next_obs"]).amax(1)
        targets = batch["rewards"] + args.gamma * ~batch["over"] * next_value
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


def train(network: nn.Module, env: Env, args: Args) -> float:
    """Train the network in place; return the mean score of its last 100 games."""
    target = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=args.learning_rate, eps=1e-8)
    replay = Replay(args.buffer_size)
    action_rng = np.random.default_rng(stream(args.seed, ACTIONS))
    replay_rng = np.random.default_rng(stream(args.seed, REPLAY))

    env.reset()
    timesteps, copies, mean_score = 0, 0, float("nan")
    while timesteps < args.total_timesteps:
        epsilon = exploration_rate(timesteps, args)  # the same for all steps until the next update
        collect(network, env, replay, epsilon, args, action_rng)
        timesteps += args.train_freq
        if timesteps > args.learning_starts:
            if timesteps // args.target_update_every_timesteps > copies:
                copies = timesteps // args.target_update_every_timesteps
                target.load_state_dict(network.state_dict())
            batch = replay.batch(replay_rng.integers(0, len(replay), args.batch_size))
            update(network, target, optimizer, batch, args)
        if env.finished:
            mean_score = float(np.mean(env.finished))
        if timesteps % 10_000 < args.train_freq:
            print(f"{timesteps:>8} steps  score {mean_score:.1f}")
    return mean_score


def main(args: Args) -> None:
    env = Env(AtariGame(args.env_id), args)
    obs_space, action_space = env.game.observation_space, env.game.action_space
    network = QNetwork(obs_space.shape, int(action_space.n), torch.Generator().manual_seed(args.seed))
    mean_score = train(network, env, args)
    print(f"mean return of the last 100 training episodes: {mean_score:.1f}")


if __name__ == "__main__":
    torch.set_num_threads(1)  # the package's default; more threads may be faster if cores are idle
    main(tyro.cli(Args, description=__doc__))
