"""Train IPPO or MAPPO of BenchMARL on a game of mpe2; runs in a venv that has both. Prints CPU seconds and parameters.

BenchMARL's own PettingZoo task imports `pettingzoo.mpe`, which is no longer part of PettingZoo. The task below gives
TorchRL's wrapper the game of mpe2 instead. Each game of a run has a seed of its own; BenchMARL's task would give all of
them the same one, and so the same sequence of starting positions.

The policy is written as the layers of its networks, which the caller evaluates in its own environment.
"""

import argparse
import importlib
import itertools
import json
import os
import time
import warnings

os.environ.setdefault(
    "RL_WARNINGS", "0"
)  # TorchRL's extension, which only prioritised replay needs, does not load
warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from benchmarl.algorithms import IppoConfig, MappoConfig  # noqa: E402
from benchmarl.environments.pettingzoo.common import PettingZooClass  # noqa: E402
from benchmarl.experiment import Experiment, ExperimentConfig  # noqa: E402
from benchmarl.experiment.callback import Callback  # noqa: E402
from benchmarl.models.mlp import MlpConfig  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from torchrl.data import Categorical, Composite, Unbounded  # noqa: E402
from torchrl.envs import EnvBase, PettingZooWrapper  # noqa: E402


class Games(EnvBase):
    """Several games of mpe2 as one batched environment of TorchRL."""

    def __init__(self, games, seed, group_map):
        super().__init__(batch_size=torch.Size([len(games)]))
        self.games, self.seed, self.group_map = games, seed, group_map
        first, count = games[0], len(games)
        actions, seen, rewards = (
            Composite(shape=(count,)),
            Composite(shape=(count,)),
            Composite(shape=(count,)),
        )
        for group, agents in group_map.items():
            shape = (count, len(agents))
            size = first.observation_space(agents[0]).shape[0]
            choices = int(first.action_space(agents[0]).n)
            actions[group] = Composite({"action": Categorical(choices, shape=shape)}, shape=shape)
            seen[group] = Composite({"observation": Unbounded(shape=(*shape, size))}, shape=shape)
            rewards[group] = Composite({"reward": Unbounded(shape=(*shape, 1))}, shape=shape)
        seen["state"] = Unbounded(shape=(count, *first.state_space.shape))
        flag = {"n": 2, "shape": (count, 1), "dtype": torch.bool}
        flags = {name: Categorical(**flag) for name in ("done", "terminated", "truncated")}
        self.action_spec, self.observation_spec, self.reward_spec = actions, seen, rewards
        self.done_spec = Composite(flags, shape=(count,))
        self._seen = [None] * count

    def _set_seed(self, seed):
        """Give each game a seed of its own at its next reset."""
        self.seed = seed

    def _with_observations(self, found):
        for group, agents in self.group_map.items():
            rows = np.array([[seen[agent] for agent in agents] for seen, _ in self._seen], np.float32)
            found[group] = TensorDict({"observation": torch.from_numpy(rows)}, batch_size=rows.shape[:2])
        found["state"] = torch.from_numpy(np.array([state for _, state in self._seen], np.float32))
        return found

    def _reset(self, tensordict=None, **kwargs):
        wanted = None if tensordict is None else tensordict.get("_reset", None)
        for number, game in enumerate(self.games):
            if wanted is None or wanted[number].any():
                seed = None if self.seed is None else 1_000_003 * self.seed + number
                self._seen[number] = (game.reset(seed=seed)[0], game.state())
        self.seed = None
        found = TensorDict({}, batch_size=self.batch_size)
        for name in ("done", "terminated", "truncated"):
            found[name] = torch.zeros(*self.batch_size, 1, dtype=torch.bool)
        return self._with_observations(found)

    def _step(self, tensordict):
        chosen = {group: tensordict[group, "action"].tolist() for group in self.group_map}
        places = [
            (agent, group, n) for group, agents in self.group_map.items() for n, agent in enumerate(agents)
        ]
        paid, ends = [], []
        for number, game in enumerate(self.games):
            actions = {agent: chosen[group][number][n] for agent, group, n in places}
            seen, rewards, terminated, truncated, _ = game.step(actions)
            self._seen[number] = (seen, game.state())
            paid.append(rewards)
            ends.append((any(terminated.values()), any(truncated.values())))
        found = self._with_observations(TensorDict({}, batch_size=self.batch_size))
        for group, agents in self.group_map.items():
            rows = np.array([[[rewards[agent]] for agent in agents] for rewards in paid], np.float32)
            found[group, "reward"] = torch.from_numpy(rows)
        found["terminated"], found["truncated"] = torch.tensor(ends).unsqueeze(-1).unbind(1)
        found["done"] = found["terminated"] | found["truncated"]
        return found


class Mpe2Task(PettingZooClass):
    """A game of mpe2 for BenchMARL, with the game's state for central critics."""

    def get_env_fun(self, num_envs, continuous_actions, seed, device):
        module = importlib.import_module(f"mpe2.{self.config['game']}")
        seeds = itertools.count(1_000_003 * seed)

        def single():
            game = module.parallel_env(**self.config["game_settings"])
            return PettingZooWrapper(game, return_state=True, categorical_actions=True, seed=next(seeds))

        def several():
            games = [module.parallel_env(**self.config["game_settings"]) for _ in range(num_envs)]
            return Games(games, seed, single().group_map)

        return single if self.config["wrapper"] else several

    def supports_continuous_actions(self):
        return False

    def supports_discrete_actions(self):
        return True

    def has_state(self):
        return True

    def has_render(self, env):
        return False

    def observation_spec(self, env):
        found = env.observation_spec_unbatched.clone()
        del found["state"]
        return found

    def state_spec(self, env):
        return Composite(state=env.observation_spec_unbatched["state"].clone())

    def action_spec(self, env):
        return env.full_action_spec_unbatched

    def action_mask_spec(self, env):
        return None

    def info_spec(self, env):
        return None

    def max_steps(self, env):
        return self.config["game_settings"]["max_cycles"]


class Orthogonal(Callback):
    """Initialise hidden layers orthogonally with gain sqrt(2), outputs with 0.01 (actor) and 1 (critic)."""

    def on_setup(self):
        for loss in self.experiment.losses.values():
            for params, last in ((loss.actor_network_params, 0.01), (loss.critic_network_params, 1.0)):
                layers = layers_of(params)
                for number, layer in enumerate(layers):
                    if layer.dim() == 1:
                        layer.zero_()
                    else:
                        torch.nn.init.orthogonal_(layer, last if number == len(layers) - 2 else 2**0.5)


def layers_of(params):
    """Return weights and biases of an MLP in order; they share the memory of the network."""
    named = {tuple(str(key).split(".")[-2:]): value.data for key, value in params.flatten_keys(".").items()}
    return [named[key] for key in sorted(named, key=lambda key: (int(key[0]), key[1] == "bias"))]


def experiment_of(flags: argparse.Namespace, settings: dict) -> Experiment:
    """Return BenchMARL's experiment with the settings of ours, in BenchMARL's words."""
    config = ExperimentConfig.get_from_yaml()
    frames = settings["num_steps"] * settings["num_games"]
    wanted = {
        "prefer_continuous_actions": False,
        "gamma": settings["gamma"],
        "lr": settings["learning_rate"],
        "adam_eps": settings["adam_eps"],
        "clip_grad_val": settings["max_grad_norm"],
        "max_n_frames": flags.frames,
        "on_policy_collected_frames_per_batch": frames,
        "on_policy_n_envs_per_worker": settings["num_games"],
        "on_policy_n_minibatch_iters": settings["update_epochs"],
        "on_policy_minibatch_size": frames // settings["num_minibatches"],
        "evaluation": False,
        "render": False,
        "loggers": [],
        "create_json": False,
        "save_folder": os.getcwd(),
    }
    for name, value in wanted.items():
        if not hasattr(config, name):
            raise SystemExit(f"BenchMARL has no setting {name}")
        setattr(config, name, value)
    algorithm = {"ippo": IppoConfig, "mappo": MappoConfig}[flags.algo].get_from_yaml()
    algorithm.clip_epsilon = settings["clip_coef"]
    algorithm.entropy_coef = settings["ent_coef"]
    algorithm.critic_coef = settings["vf_coef"]
    algorithm.lmbda = settings["gae_lambda"]
    model = MlpConfig(
        num_cells=settings["hidden_sizes"], layer_class=torch.nn.Linear, activation_class=torch.nn.Tanh
    )
    game = {"game": flags.game, "game_settings": json.loads(flags.game_settings), "wrapper": flags.wrapper}
    task = Mpe2Task(flags.game, game)
    experiment = Experiment(
        task=task,
        algorithm_config=algorithm,
        model_config=model,
        critic_model_config=MlpConfig(**vars(model)),
        seed=flags.seed,
        config=config,
        callbacks=[Orthogonal()],
    )
    for loss in experiment.losses.values():
        loss.normalize_advantage = settings["normalize_advantage"]
    return experiment


def main() -> None:
    """Train, write the policy, and print the CPU time."""
    parser = argparse.ArgumentParser()
    for name in ("algo", "game", "game-settings", "settings", "policy"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--wrapper", action="store_true", help="games one by one in TorchRL's wrapper")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    experiment = experiment_of(flags, json.loads(flags.settings))
    started = time.process_time()
    experiment.run()
    seconds = time.process_time() - started
    policies = {group: layers_of(loss.actor_network_params) for group, loss in experiment.losses.items()}
    arrays = {
        f"{agent}/{number}": layer.numpy()
        for group, agents in experiment.group_map.items()
        for agent in agents
        for number, layer in enumerate(policies[group])
    }
    np.savez(flags.policy, **arrays)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
