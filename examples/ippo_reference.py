"""Independent PPO (IPPO) in a game with several agents, in one file: one policy that all agents share.

    python examples/ippo_reference.py --total-timesteps 180000
    python examples/ippo_reference.py --game classic/tictactoe_v3 --api aec

Every agent of every game is a row, which acts for itself: that is all of "independent". Two things are different from
PPO for a single agent. An agent may not act in a step, because it waits for its turn, or because the game ended for it;
such a row is not *valid* and teaches nothing. And what an agent is paid while it waits belongs to its last own action:
generalized advantage estimation runs over an agent's own actions. The `rl_training` package computes the same update
faster; a test checks that both give the same parameters, to the last digit.
"""

import importlib
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn


@dataclass
class Args:
    game: str = "mpe2/simple_spread_v3"
    """A game of PettingZoo, or family/name of a package with its interface. Agents must see vectors or boards."""
    api: Literal["parallel", "aec"] = "parallel"
    """Whether all agents act at once, or one after another."""
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
    learning_rate: float = 7e-4
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
    max_grad_norm: float = 0.5
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
    """The policy and the value that all agents share."""

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

    def logprobs(self, obs: Tensor, masks: Tensor) -> Tensor:
        """Log-probabilities of all actions; forbidden ones have a probability of 0."""
        return F.log_softmax(torch.where(masks, self.actor(obs), -1e9), dim=-1)

    def act(self, obs: Tensor, masks: Tensor, uniform: np.ndarray) -> tuple[Tensor, Tensor]:
        """Sample one action per row by inverting the cumulative distribution at a uniform number."""
        logprobs = self.logprobs(obs, masks)
        cumulative = logprobs.exp().cumsum(-1)
        actions = (cumulative <= torch.as_tensor(uniform)[:, None]).sum(-1).clamp(max=logprobs.shape[1] - 1)
        return actions, logprobs.gather(-1, actions[:, None]).squeeze(-1)

    def evaluate(self, obs: Tensor, masks: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logprobs = self.logprobs(obs, masks)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(-1, actions[:, None]).squeeze(-1), entropy, self.value(obs)


# ------------------------------------------------------------------------------------------------ games


@dataclass
class Step:
    """One step of a game, by agent [A]: what it was paid, how it ended, and what it sees and may do next."""

    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    acts: np.ndarray
    """Whether its next action will be used."""
    obs: np.ndarray
    masks: np.ndarray


def make_game(args: Args) -> Any:
    """PettingZoo's registry knows its own games; others are modules with a function."""
    family, name = args.game.split("/")
    if family == "mpe2":
        module = importlib.import_module(f"{family}.{name}")
        return module.parallel_env() if args.api == "parallel" else module.env()
    return importlib.import_module("pettingzoo").make(args.api, args.game)


class Game:
    """A game whose agents are numbered. Game k of number i always starts from the same seed."""

    def __init__(self, args: Args, number: int) -> None:
        self.game, self.args, self.number, self.played = make_game(args), args, number, -1
        self.agents = list(self.game.possible_agents)
        space = self.game.observation_space(self.agents[0])
        space = getattr(space, "spaces", {}).get("observation", space)
        self.obs_size = int(np.prod(space.shape))
        self.num_actions = int(self.game.action_space(self.agents[0]).n)
        self.returns = np.zeros(len(self.agents))

    def reset(self) -> Step:
        self.played += 1
        self.returns[:] = 0.0
        block, place = divmod(self.played, 64)  # seeds are made 64 at a time
        seed = stream(self.args.seed, EPISODES, self.number, block).generate_state(64)[place]
        result = self.game.reset(seed=int(seed))
        return self._of_parallel(*result) if self.args.api == "parallel" else self._of_turns({}, {})

    def step(self, actions: np.ndarray) -> Step:
        if self.args.api == "parallel":
            chosen = {agent: int(actions[self.agents.index(agent)]) for agent in self.game.agents}
            obs, rewards, terminations, truncations, infos = self.game.step(chosen)
            step = self._of_parallel(obs, infos, rewards, terminations, truncations)
        else:
            self.game.step(int(actions[self.agents.index(self.game.agent_selection)]))
            step = self._of_turns({}, {})
        self.returns += step.rewards
        return step

    def _of_parallel(self, obs, infos, rewards=None, terminations=None, truncations=None) -> Step:  # type: ignore[no-untyped-def]
        ended = {a for a in obs if (terminations or {}).get(a) or (truncations or {}).get(a)}
        acts = [a for a in self.game.agents if a not in ended]
        return self._step(obs, rewards or {}, terminations or {}, truncations or {}, acts)

    def _of_turns(self, terminations: dict, truncations: dict) -> Step:
        """An agent is paid when its turn comes, and when it leaves the game."""
        obs, rewards, acts = {}, {}, []
        while self.game.agents:
            agent = self.game.agent_selection
            obs[agent], rewards[agent], terminations[agent], truncations[agent], _ = self.game.last()
            if not (terminations[agent] or truncations[agent]):
                acts = [agent]
                break
            self.game.step(None)
        return self._step(obs, rewards, terminations, truncations, acts)

    def _step(self, obs: dict, rewards: dict, terminations: dict, truncations: dict, acts: list) -> Step:
        count = len(self.agents)
        step = Step(
            rewards=np.array([float(rewards.get(a, 0.0)) for a in self.agents]),
            terminated=np.array([bool(terminations.get(a)) for a in self.agents]),
            truncated=np.array([bool(truncations.get(a)) for a in self.agents]),
            acts=np.array([a in acts for a in self.agents]),
            obs=np.zeros((count, self.obs_size)),
            masks=np.ones((count, self.num_actions), bool),
        )
        for number, agent in enumerate(self.agents):
            seen = obs.get(agent)
            if isinstance(seen, dict):
                if step.acts[number]:
                    step.masks[number] = seen["action_mask"]
                seen = seen["observation"]
            if seen is not None:
                step.obs[number] = np.asarray(seen, np.float32).reshape(-1)
        return step


class Games:
    """Several games. Rows are agents: those of agent 0 in all games, then those of agent 1, and so on."""

    def __init__(self, args: Args) -> None:
        self.games = [Game(args, number) for number in range(args.num_envs)]
        self.now = [game.reset() for game in self.games]
        self.finished: deque[float] = deque(maxlen=100)

    def rows(self, name: str) -> Tensor:
        found = torch.as_tensor(np.stack([getattr(step, name) for step in self.now], axis=1))
        found = found.flatten(0, 1)
        return found.to(torch.get_default_dtype()) if found.is_floating_point() else found


# ------------------------------------------------------------------------------------------------ one rollout


@dataclass
class Rollout:
    """Everything [T, N]; `final_values` is the value of the final observation of a truncated game, else 0."""

    obs: Tensor
    masks: Tensor
    actions: Tensor
    logprobs: Tensor
    rewards: Tensor
    dones: Tensor
    valid: Tensor
    values: Tensor
    final_values: Tensor
    last_value: Tensor
    acts: Tensor
    """Whether the rows act after the last step [N]."""


@torch.no_grad()
def collect(agent: Agent, games: Games, args: Args, rng: np.random.Generator) -> Rollout:
    """Step all games `num_steps` times."""
    obs, masks = games.rows("obs"), games.rows("masks")
    count, shape = len(obs), (args.num_steps, len(obs))
    rollout = Rollout(
        obs=torch.zeros(*shape, obs.shape[1]),
        masks=torch.ones(*shape, masks.shape[1], dtype=torch.bool),
        actions=torch.zeros(shape, dtype=torch.long),
        logprobs=torch.zeros(shape),
        rewards=torch.zeros(shape),
        dones=torch.zeros(shape, dtype=torch.bool),
        valid=torch.zeros(shape, dtype=torch.bool),
        values=torch.zeros(shape),
        final_values=torch.zeros(shape),
        last_value=torch.zeros(count),
        acts=torch.zeros(count, dtype=torch.bool),
    )
    for t in range(args.num_steps):
        rollout.obs[t], rollout.masks[t], rollout.valid[t] = (
            games.rows("obs"),
            games.rows("masks"),
            games.rows("acts"),
        )
        rollout.actions[t], rollout.logprobs[t] = agent.act(
            rollout.obs[t], rollout.masks[t], rng.random(count)
        )
        rollout.values[t] = agent.value(rollout.obs[t])
        by_game = rollout.actions[t].view(-1, args.num_envs).T.numpy()
        games.now = [game.step(actions) for game, actions in zip(games.games, by_game, strict=True)]
        rollout.rewards[t] = games.rows("rewards")
        truncated = games.rows("truncated") & ~games.rows("terminated")
        rollout.dones[t] = games.rows("terminated") | truncated
        # a time limit ends the game, but not the task: bootstrap from the final observation
        rollout.final_values[t] = torch.where(truncated, agent.value(games.rows("obs")), 0.0)
        for i, game in enumerate(games.games):
            if not games.now[i].acts.any():
                games.finished.append(float(game.returns.sum()))
                games.now[i] = game.reset()
    rollout.last_value, rollout.acts = agent.value(games.rows("obs")), games.rows("acts")
    return rollout


def advantages_and_returns(
    rollout: Rollout, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Generalized advantage estimation over the own actions of each row; also which rows can be learned from.

    What a row is paid while it waits counts for its last own action. If the rollout ends before its next own action,
    the outcome of the last one is unknown, and it is left out.
    """
    advantages, known = torch.zeros_like(rollout.rewards), rollout.valid.clone()
    trace = torch.zeros_like(rollout.last_value)
    next_value, waiting_reward, open_end = rollout.last_value, torch.zeros_like(trace), ~rollout.acts
    for t in reversed(range(len(advantages))):
        done, valid = rollout.dones[t], rollout.valid[t]
        # what follows step t in its own game
        next_value = torch.where(done, rollout.final_values[t], next_value)
        trace = torch.where(done, 0.0, trace)
        waiting_reward = torch.where(done, 0.0, waiting_reward) + rollout.rewards[t]
        open_end = open_end & ~done
        delta = waiting_reward + gamma * next_value - rollout.values[t]
        advantages[t] = torch.where(valid, delta + gamma * gae_lambda * trace, 0.0)
        known[t] = valid & ~open_end
        trace = torch.where(valid, torch.where(open_end, 0.0, advantages[t]), trace)
        next_value = torch.where(valid, rollout.values[t], next_value)
        waiting_reward = torch.where(valid, 0.0, waiting_reward)
        open_end = open_end & ~valid
    return advantages, advantages + rollout.values, known


# ------------------------------------------------------------------------------------------------ the update


def loss_on(agent: Agent, batch: dict[str, Tensor], args: Args) -> Tensor:
    """The clipped objective, the value error and the entropy bonus of one minibatch [B]."""
    logprobs, entropy, values = agent.evaluate(batch["obs"], batch["masks"], batch["actions"])
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
    """Several epochs of minibatches over the own actions of one rollout."""
    advantages, returns, known = advantages_and_returns(rollout, args.gamma, args.gae_lambda)
    rows = {
        "obs": rollout.obs[known],
        "masks": rollout.masks[known],
        "actions": rollout.actions[known],
        "logprobs": rollout.logprobs[known],
        "advantages": advantages[known],
        "returns": returns[known],
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


def train(args: Args) -> tuple[Agent, float]:
    """Return the trained agent and the mean return of the last 100 games, summed over agents."""
    games = Games(args)
    first = games.games[0]
    agent = Agent(first.obs_size, first.num_actions, torch.Generator().manual_seed(args.seed))
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    action_rng = np.random.default_rng(stream(args.seed, ACTIONS))
    minibatch_rng = np.random.default_rng(stream(args.seed, MINIBATCHES))
    timesteps, rollouts, mean_return = 0, 0, float("nan")
    while timesteps < args.total_timesteps:
        rollout = collect(agent, games, args, action_rng)
        timesteps += int(rollout.valid.sum())
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
