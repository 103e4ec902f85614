"""IQL in one file: learns from a Minari dataset, top to bottom, with nothing hidden.

    python examples/iql_reference.py --dataset datasets/pendulum-mixed --total-updates 3000

Reads like the paper (arXiv:2110.06169) plus the details that make it work. The `rl_training` package computes the same
update faster; a test checks that both give the same parameters, to the last digits.
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
from gymnasium.envs.registration import EnvSpec
from minari.dataset.minari_storage import MinariStorage
from torch import Tensor, nn


@dataclass
class Args:
    dataset: str = "datasets/pendulum-mixed"
    """Folder of a Minari dataset with vector observations and bounded continuous actions."""
    seed: int = 1
    """Root seed of all random streams."""
    total_updates: int = 20_000
    """Updates of all networks."""
    num_eval_episodes: int = 20
    """Episodes of the evaluation at the end."""
    batch_size: int = 256
    """Transitions in one update."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Sizes of the hidden layers of all networks."""
    learning_rate: float = 3e-4
    """Learning rate of all networks (Adam)."""
    gamma: float = 0.99
    """Discount."""
    tau: float = 0.005
    """Rate of the soft update of the target critics."""
    expectile: float = 0.7
    """Which expectile of the critics' values the state value learns."""
    inverse_temperature: float = 3.0
    """How much more the actor imitates better actions."""
    max_weight: float = 100.0
    """Maximum weight of an action."""


# ------------------------------------------------------------------------------------------------ random numbers
# One root seed; every consumer has its own stream, so that changing one does not affect another.


def stream(seed: int, *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=key)


REPLAY = 7


def real() -> np.dtype:
    """The NumPy equivalent of torch's default dtype: float32, unless a test uses float64."""
    return torch.zeros(0).numpy().dtype


# ------------------------------------------------------------------------------------------------ the data


class Data:
    """All transitions of a dataset, with one array per field and actions in [-1, 1]."""

    def __init__(self, folder: str) -> None:
        source = MinariStorage.read(Path(folder) / "data")
        self.env, space = gym.make(EnvSpec.from_json(source.metadata["env_spec"])), source.action_space
        assert isinstance(space, gym.spaces.Box), "this script is for continuous actions"
        assert space.is_bounded(), "this script is for actions with bounds"
        self.middle, self.half = (space.high + space.low) / 2.0, (space.high - space.low) / 2.0
        episodes = list(source.get_episodes(range(source.total_episodes)))
        # an episode of T steps has T + 1 observations; only termination stops bootstrapping
        self.obs = joined([each["observations"][:-1] for each in episodes])
        self.next_obs = joined([each["observations"][1:] for each in episodes])
        self.actions = ((joined([each["actions"] for each in episodes]) - self.middle) / self.half).clip(
            -1, 1
        )
        self.actions = self.actions.astype(real())
        self.rewards = joined([each["rewards"] for each in episodes])
        self.terminated = joined([each["terminations"] for each in episodes])

    def batch(self, size: int, rng: np.random.Generator) -> dict[str, Tensor]:
        rows = rng.integers(0, len(self.rewards), size)
        names = ("obs", "next_obs", "actions", "rewards", "terminated")
        return {name: torch.from_numpy(getattr(self, name)[rows]) for name in names}


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts).astype(real())


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
    """An actor with its log deviations, two critics with a target copy of each, and the value of states."""

    def __init__(self, obs_size: int, action_size: int, args: Args) -> None:
        generator = torch.Generator().manual_seed(args.seed)
        sizes = (obs_size, *args.hidden_sizes)
        self.actor = chain([linear(*ends, generator) for ends in pairwise((*sizes, action_size))])
        self.log_std = nn.Parameter(torch.zeros(action_size))
        self.critics = twin_critics((obs_size + action_size, *args.hidden_sizes, 1), generator)
        self.value = chain([linear(*ends, generator) for ends in pairwise((*sizes, 1))])
        self.target_critics = copy.deepcopy(self.critics)
        actor = [*self.actor.parameters(), self.log_std]
        self.actor_optimizer = torch.optim.Adam(actor, lr=args.learning_rate, eps=1e-8)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=args.learning_rate, eps=1e-8)
        self.value_optimizer = torch.optim.Adam(self.value.parameters(), lr=args.learning_rate, eps=1e-8)

    @torch.no_grad()
    def act(self, obs: np.ndarray) -> np.ndarray:
        """The most likely action [A] in [-1, 1] for one observation [D]."""
        return torch.tanh(self.actor(torch.from_numpy(obs.astype(real())))).numpy()


# ------------------------------------------------------------------------------------------------ the update


def update(agent: Agent, batch: dict[str, Tensor], args: Args) -> dict[str, Tensor]:
    """Take one step on each of the three losses, all at the same weights; return the losses."""
    pairs = torch.cat([batch["obs"], batch["actions"]], dim=-1)
    with torch.no_grad():
        recorded = torch.minimum(*(critic(pairs).squeeze(-1) for critic in agent.target_critics))
        next_values = agent.value(batch["next_obs"]).squeeze(-1)
        targets = batch["rewards"] + args.gamma * (1 - batch["terminated"]) * next_values

    # The value of a state is an upper expectile of the values of recorded actions: nearly that of the best of them. No
    # critic is ever asked about an action that the data lacks.
    advantages = recorded - agent.value(batch["obs"]).squeeze(-1)
    weights = torch.where(advantages < 0, 1 - args.expectile, args.expectile)
    value_loss = (weights * advantages.square()).mean()

    critic_loss = sum((critic(pairs).squeeze(-1) - targets).square().mean() for critic in agent.critics)

    # The actor is a normal whose mean is in [-1, 1]. A squashed normal would give recorded actions at the bounds an
    # infinite log-probability.
    importance = (args.inverse_temperature * advantages.detach()).exp().clamp(max=args.max_weight)
    policy = torch.distributions.Normal(torch.tanh(agent.actor(batch["obs"])), agent.log_std.exp())
    actor_loss = -(importance * policy.log_prob(batch["actions"]).sum(-1)).mean()

    losses = {"value": value_loss, "critic": critic_loss, "actor": actor_loss}
    for name, loss in losses.items():
        optimizer = getattr(agent, f"{name}_optimizer")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    follow(agent.target_critics, agent.critics, args.tau)
    return {name: loss.detach() for name, loss in losses.items()}


@torch.no_grad()
def follow(target: nn.Module, online: nn.Module, tau: float) -> None:
    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
        slow.lerp_(fast, tau)


def train(args: Args, data: Data) -> Agent:
    agent = Agent(data.obs.shape[1], data.actions.shape[1], args)
    rng = np.random.default_rng(stream(args.seed, REPLAY))
    for number in range(args.total_updates):
        losses = update(agent, data.batch(args.batch_size, rng), args)
        if (number + 1) % 1000 == 0:
            print(f"{number + 1:>8} updates ", *(f"{name} loss {loss:.3f}" for name, loss in losses.items()))
    return agent


def evaluate(agent: Agent, data: Data, episodes: int) -> float:
    """Return the mean return of episodes in the environment that the dataset was recorded in."""
    total = 0.0
    for number in range(episodes):
        obs, _ = data.env.reset(seed=number)
        over = False
        while not over:
            action = agent.act(obs) * data.half + data.middle
            obs, reward, terminated, truncated, _ = data.env.step(action.astype(data.env.action_space.dtype))
            total, over = total + float(reward), terminated or truncated
    return total / episodes


if __name__ == "__main__":
    torch.set_num_threads(1)  # small networks train fastest on one thread
    given = tyro.cli(Args, description=__doc__)
    recorded_data = Data(given.dataset)
    trained = train(given, recorded_data)
    mean_return = evaluate(trained, recorded_data, given.num_eval_episodes)
    print(f"mean return of {given.num_eval_episodes} evaluation episodes: {mean_return:.1f}")
