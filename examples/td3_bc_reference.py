"""TD3+BC and behavioural cloning from a dataset in one file: the whole loop, top to bottom, with nothing hidden.

    python examples/td3_bc_reference.py --dataset datasets/pendulum-mixed --total-updates 20000

Reads like the paper (arXiv:2106.06860). With `--alpha 0` the actor only imitates. The dataset is a folder that Minari
wrote. The `rl_training` package computes the same update faster; a test checks that both give the same losses and
parameters, to the last digits.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import tyro
from minari.dataset.minari_storage import MinariStorage
from torch import Tensor, nn


@dataclass
class Args:
    dataset: Path = Path("datasets/pendulum-mixed")
    """Folder of a Minari dataset with vector observations and bounded continuous actions."""
    seed: int = 1
    """Root seed of all random streams."""
    total_updates: int = 20_000
    """Updates of the critics."""
    num_eval_episodes: int = 20
    """Episodes of the evaluation after training."""
    normalize_obs: bool = True
    """Scale observations to mean 0 and deviation 1 over the dataset, as the paper does."""
    alpha: float = 2.5
    """Weight of the critic's value against the squared distance to the recorded actions; 0 imitates only."""
    batch_size: int = 256
    """Transitions in one update."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Sizes of the hidden layers of actor and critics."""
    learning_rate: float = 3e-4
    """Learning rate of actor and critics (Adam)."""
    gamma: float = 0.99
    """Discount."""
    tau: float = 0.005
    """Rate of the soft update of the target networks, in every update of the actor."""
    policy_delay: int = 2
    """Updates of the critics per update of actor and targets."""
    target_policy_noise: float = 0.2
    """Standard deviation of the noise on target actions, which are in [-1, 1]."""
    target_noise_clip: float = 0.5
    """Clipping range of that noise."""


# ------------------------------------------------------------------------------------------------ random numbers
# One root seed; every consumer has its own stream, so that changing one does not affect another.


def stream(seed: int, *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=key)


REPLAY, UPDATE_NOISE = 7, 8


def real() -> np.dtype:
    """The NumPy equivalent of torch's default dtype: float32, unless a test uses float64."""
    return torch.zeros(0).numpy().dtype


# ------------------------------------------------------------------------------------------------ the dataset


class Data:
    """All transitions of a dataset, with actions scaled to [-1, 1]."""

    def __init__(self, folder: Path, *, normalize_obs: bool) -> None:
        recorded = MinariStorage.read(folder / "data")
        space = recorded.action_space
        assert isinstance(space, gym.spaces.Box), "this script is for continuous actions"
        assert space.is_bounded(), "this script is for actions with bounds"
        self.low, self.high = space.low.astype(real()), space.high.astype(real())
        episodes = list(recorded.get_episodes(range(recorded.total_episodes)))
        # an episode of T steps has T + 1 observations: the last one is the successor of the last step
        self.obs = np.concatenate([each["observations"][:-1] for each in episodes]).astype(real())
        self.next_obs = np.concatenate([each["observations"][1:] for each in episodes]).astype(real())
        actions = np.concatenate([each["actions"] for each in episodes]).astype(real())
        self.actions = (2 * (actions - self.low) / (self.high - self.low) - 1).clip(-1, 1)
        self.rewards = np.concatenate([each["rewards"] for each in episodes]).astype(real())
        # only termination stops bootstrapping: after a time limit the last observation still has a value
        self.terminated = np.concatenate([each["terminations"] for each in episodes]).astype(real())
        self.mean, self.deviation = np.zeros(self.obs.shape[1], real()), np.ones(self.obs.shape[1], real())
        if normalize_obs:
            self.mean, self.deviation = self.obs.mean(0), self.obs.std(0) + real().type(1e-3)
        self.obs, self.next_obs = self.normalized(self.obs), self.normalized(self.next_obs)
        self.returns = [float(each["rewards"].sum()) for each in episodes]
        self.env_spec = recorded.metadata.get("env_spec")

    def normalized(self, obs: np.ndarray) -> np.ndarray:
        return ((obs - self.mean) / self.deviation).astype(real())

    def to_env(self, action: np.ndarray) -> np.ndarray:
        scaled = self.low + (action + 1) / 2 * (self.high - self.low)
        return scaled.clip(self.low, self.high).astype(np.float32)

    def batch(self, size: int, rng: np.random.Generator) -> dict[str, Tensor]:
        rows = rng.integers(0, len(self.obs), size)
        names = ("obs", "next_obs", "actions", "rewards", "terminated")
        return {name: torch.from_numpy(getattr(self, name)[rows]) for name in names}


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
    def act(self, obs: np.ndarray) -> np.ndarray:
        """The actor's action [A] for one normalized observation [D]."""
        return torch.tanh(self.actor(torch.from_numpy(obs))).numpy()


# ------------------------------------------------------------------------------------------------ the update


def update_critics(agent: Agent, batch: dict[str, Tensor], noise: Tensor, args: Args) -> Tensor:
    """Train both critics on one batch [B] with standard noise [B, A], as TD3 does; return the loss."""
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
    """Update the actor with the first critic and the recorded actions, then all targets; return the actor's loss."""
    # Dividing by the mean size of the values makes alpha independent of the scale of rewards. It is a constant: no
    # gradient passes through it.
    actions = torch.tanh(agent.actor(batch["obs"]))
    values = agent.critics[0](torch.cat([batch["obs"], actions], dim=-1))
    weight = args.alpha / values.abs().mean().detach()
    loss = nn.functional.mse_loss(actions, batch["actions"]) - weight * values.mean()
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


def train(args: Args, data: Data) -> Agent:
    """Return the agent that has learned from the dataset."""
    agent = Agent(data.obs.shape[1], data.actions.shape[1], args)
    replay_rng = np.random.default_rng(stream(args.seed, REPLAY))
    noise_rng = np.random.default_rng(stream(args.seed, UPDATE_NOISE))
    for update in range(args.total_updates):
        batch = data.batch(args.batch_size, replay_rng)
        noise = torch.from_numpy(noise_rng.standard_normal(tuple(batch["actions"].shape), dtype=real()))
        critic_loss = update_critics(agent, batch, noise, args)
        if (update + 1) % args.policy_delay == 0:  # delayed policy updates
            update_actor(agent, batch, args)
        if (update + 1) % 2000 == 0:
            print(f"{update + 1:>8} updates  critic loss {critic_loss:.3f}")
    return agent


def evaluate(agent: Agent, data: Data, args: Args) -> float:
    """Return the mean return in the environment that the dataset was recorded in."""
    assert data.env_spec is not None, "the dataset does not name its environment"
    env = gym.make(gym.envs.registration.EnvSpec.from_json(data.env_spec))
    returns = []
    for episode in range(args.num_eval_episodes):
        obs, _ = env.reset(seed=10_000 * args.seed + episode)
        total, over = 0.0, False
        while not over:
            action = data.to_env(agent.act(data.normalized(obs)))
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


if __name__ == "__main__":
    torch.set_num_threads(1)  # small networks train fastest on one thread
    arguments = tyro.cli(Args, description=__doc__)
    dataset = Data(arguments.dataset, normalize_obs=arguments.normalize_obs)
    print(f"mean return of the recorded episodes: {np.mean(dataset.returns):.1f}")
    result = evaluate(train(arguments, dataset), dataset, arguments)
    print(f"mean return of {arguments.num_eval_episodes} evaluation episodes: {result:.1f}")
