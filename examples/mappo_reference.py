"""MAPPO in a game with several agents, in one file: PPO with a critic that sees the whole game, arXiv:2103.01955.

    python examples/mappo_reference.py --total-timesteps 180000

Every agent of every game is a row, and all rows share one policy, which sees what its agent sees. The critic also reads
the state of the game, which makes its values less noisy: what other agents see and do is no chance to it. Acting
needs no critic, so each agent can act on its own once training is over. All agents act at once here, and their games
end together (`ippo_reference.py` shows what to do where they do not). The `rl_training` package computes the same
update faster; a test checks that both give the same parameters, to the last digit.
"""

import importlib
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn


@dataclass
class Args:
    game: str = "mpe2/simple_spread_v3"
    """family/name of a game with PettingZoo's parallel interface and a state. All agents see vectors of one length."""
    max_cycles: int = 25
    """Steps of a game."""
    seed: int = 1
    """Root seed of all random streams."""
    total_timesteps: int = 180_000
    """Actions of agents, summed over agents and games."""
    num_envs: int = 8
    """Number of games that are played at the same time."""
    num_steps: int = 128
    """Steps of every game in one rollout."""
    batch_size: int = 512
    """Rows in one minibatch."""
    update_epochs: int = 5
    """Passes over each rollout."""
    learning_rate: float = 5e-4
    """Learning rate (Adam)."""
    gamma: float = 0.99
    """Discount, between an agent's own actions."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation."""
    clip_coef: float = 0.2
    """Clipping range of the probability ratio."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss (mean squared error, no factor of one half)."""
    max_grad_norm: float = 10.0
    """Maximum norm of the gradient."""


# ------------------------------------------------------------------------------------------------ random numbers


def stream(seed: int, *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=key)


EPISODES, ACTIONS, MINIBATCHES = 0, 2, 3


# ------------------------------------------------------------------------------------------------ networks


def linear(fan_in: int, fan_out: int, gain: float, generator: torch.Generator) -> nn.Linear:
    """Orthogonal weights, zero bias. A small gain in the last layer makes the initial policy nearly uniform."""
    layer = nn.Linear(fan_in, fan_out)
    nn.init.orthogonal_(layer.weight, gain=gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """The policy that all agents share, and a value of what an agent sees together with the state of its game."""

    def __init__(self, obs_size: int, state_size: int, num_actions: int, generator: torch.Generator) -> None:
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
            linear(obs_size + state_size, 64, gain, generator),
            nn.Tanh(),
            linear(64, 64, gain, generator),
            nn.Tanh(),
            linear(64, 1, 1.0, generator),
        )

    def value(self, obs: Tensor, state: Tensor) -> Tensor:
        return self.critic(torch.cat([obs, state], dim=-1)).squeeze(-1)

    def act(self, obs: Tensor, uniform: np.ndarray) -> tuple[Tensor, Tensor]:
        """Sample one action per row by inverting the cumulative distribution at a uniform number."""
        logprobs = F.log_softmax(self.actor(obs), dim=-1)
        cumulative = logprobs.exp().cumsum(-1)
        actions = (cumulative <= torch.as_tensor(uniform)[:, None]).sum(-1).clamp(max=logprobs.shape[1] - 1)
        return actions, logprobs.gather(-1, actions[:, None]).squeeze(-1)

    def evaluate(self, obs: Tensor, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logprobs = F.log_softmax(self.actor(obs), dim=-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(-1, actions[:, None]).squeeze(-1), entropy, self.value(obs, state)


# ------------------------------------------------------------------------------------------------ games


class Game:
    """A game whose agents are numbered. Game k of number i always starts from the same seed."""

    def __init__(self, args: Args, number: int) -> None:
        family, name = args.game.split("/")
        self.game = importlib.import_module(f"{family}.{name}").parallel_env(max_cycles=args.max_cycles)
        self.args, self.number, self.played = args, number, -1
        self.agents = list(self.game.possible_agents)
        self.obs = self.reset()

    def reset(self) -> np.ndarray:
        """Begin the next game; return what the agents see [A, D]."""
        self.played += 1
        self.total = 0.0
        block, place = divmod(self.played, 64)  # seeds are made 64 at a time
        seed = stream(self.args.seed, EPISODES, self.number, block).generate_state(64)[place]
        return self._stacked(self.game.reset(seed=int(seed))[0])

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool, bool]:
        """Return what the agents see and are paid, and how the game ended."""
        chosen = dict(zip(self.agents, actions.tolist(), strict=True))
        obs, rewards, terminations, truncations, _ = self.game.step(chosen)
        paid = np.array([float(rewards[agent]) for agent in self.agents])
        self.total += float(sum(rewards.values()))
        ends = all(terminations.values()), all(truncations.values())
        return self._stacked(obs), paid, *ends

    def _stacked(self, obs: dict[str, np.ndarray]) -> np.ndarray:
        return np.stack([obs[agent] for agent in self.agents])

    def state(self) -> np.ndarray:
        """What the critic reads [S], the same for all agents."""
        return np.asarray(self.game.state(), np.float32)


class Games:
    """Several games. Rows are agents: those of agent 0 in all games, then those of agent 1, and so on."""

    def __init__(self, args: Args) -> None:
        self.games = [Game(args, number) for number in range(args.num_envs)]
        self.num_agents = len(self.games[0].agents)
        self.finished: deque[float] = deque(maxlen=100)

    def obs(self) -> Tensor:
        return as_float(np.stack([game.obs for game in self.games], axis=1)).flatten(0, 1)

    def state(self) -> Tensor:
        return as_float(np.stack([game.state() for game in self.games])).repeat(self.num_agents, 1)


def as_float(array: np.ndarray) -> Tensor:
    return torch.as_tensor(array).to(torch.get_default_dtype())


# ------------------------------------------------------------------------------------------------ one rollout


@dataclass
class Rollout:
    """Everything [T, N]; `final_values` is the value of the final observation of a truncated game, else 0."""

    obs: Tensor
    state: Tensor
    actions: Tensor
    logprobs: Tensor
    rewards: Tensor
    dones: Tensor
    values: Tensor
    final_values: Tensor
    last_value: Tensor


@torch.no_grad()
def collect(agent: Agent, games: Games, args: Args, rng: np.random.Generator) -> Rollout:
    """Step all games `num_steps` times."""
    obs, state = games.obs(), games.state()
    count, shape = len(obs), (args.num_steps, len(obs))
    rollout = Rollout(
        obs=torch.zeros(*shape, obs.shape[1]),
        state=torch.zeros(*shape, state.shape[1]),
        actions=torch.zeros(shape, dtype=torch.long),
        logprobs=torch.zeros(shape),
        rewards=torch.zeros(shape),
        dones=torch.zeros(shape, dtype=torch.bool),
        values=torch.zeros(shape),
        final_values=torch.zeros(shape),
        last_value=torch.zeros(count),
    )
    for t in range(args.num_steps):
        rollout.obs[t], rollout.state[t] = games.obs(), games.state()
        rollout.actions[t], rollout.logprobs[t] = agent.act(rollout.obs[t], rng.random(count))
        rollout.values[t] = agent.value(rollout.obs[t], rollout.state[t])
        by_game = rollout.actions[t].view(-1, args.num_envs).T.numpy()
        for i, game in enumerate(games.games):
            rows = slice(i, count, args.num_envs)
            game.obs, paid, terminated, truncated = game.step(by_game[i])
            rollout.rewards[t, rows] = as_float(paid)
            if terminated or truncated:
                rollout.dones[t, rows] = True
                if not terminated:  # a time limit ends the game, but not the task
                    last = as_float(game.state()).expand(games.num_agents, -1)
                    rollout.final_values[t, rows] = agent.value(as_float(game.obs), last)
                games.finished.append(game.total)
                game.obs = game.reset()
    rollout.last_value = agent.value(games.obs(), games.state())
    return rollout


def advantages_and_returns(rollout: Rollout, gamma: float, gae_lambda: float) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation, arXiv:1506.02438; it stops at the end of a game."""
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
    """The clipped objective, the value error and the entropy bonus of one minibatch [B]."""
    logprobs, entropy, values = agent.evaluate(batch["obs"], batch["state"], batch["actions"])
    advantages = batch["advantages"]
    if len(advantages) > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = (logprobs - batch["logprobs"]).exp()
    clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = -torch.minimum(advantages * ratio, advantages * clipped).mean()
    value_loss = (values - batch["returns"]).square().mean()
    return policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy.mean()


def update(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    args: Args,
    rng: np.random.Generator,
) -> None:
    """Several epochs of minibatches over one rollout."""
    advantages, returns = advantages_and_returns(rollout, args.gamma, args.gae_lambda)
    rows = {
        "obs": rollout.obs.flatten(0, 1),
        "state": rollout.state.flatten(0, 1),
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
            loss = loss_on(agent, {name: rows[name][index] for name in rows}, args)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def new_agent(games: Games, args: Args) -> Agent:
    game = games.games[0]
    sizes = game.obs.shape[1], len(game.state()), int(game.game.action_space(game.agents[0]).n)
    return Agent(*sizes, torch.Generator().manual_seed(args.seed))


def train(args: Args) -> tuple[Agent, float]:
    """Return the trained agent and the mean return of the last 100 games, summed over agents."""
    games = Games(args)
    agent = new_agent(games, args)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    action_rng = np.random.default_rng(stream(args.seed, ACTIONS))
    minibatch_rng = np.random.default_rng(stream(args.seed, MINIBATCHES))
    timesteps, rollouts, mean_return = 0, 0, float("nan")
    while timesteps < args.total_timesteps:
        rollout = collect(agent, games, args, action_rng)
        timesteps += rollout.actions.numel()
        rollouts += 1
        update(agent, optimizer, rollout, args, minibatch_rng)
        if games.finished:
            mean_return = float(np.mean(games.finished))
        if rollouts % 10 == 0:
            print(f"{timesteps:>8} steps  return {mean_return:.1f}")
    return agent, mean_return


if __name__ == "__main__":
    torch.set_num_threads(1)  # small networks train fastest on one thread
    _, final_return = train(tyro.cli(Args, description=__doc__))
    print(f"mean return of the last 100 training episodes: {final_return:.1f}")
