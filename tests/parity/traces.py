"""Traces of learning: what every algorithm and switch makes of its tensors, update by update.

`make traces` writes `traces.json` anew; a difference that was not meant is a
fault. Two records per case:

- `float64`: two checksums per update, which every machine must reproduce to `TOLERANCE`: of all that is learned
  (parameters, targets, statistics, temperature) and of the optimizers' moments.
- `float32`: one hash per update over the bytes of every tensor in the learner's `state_dict()`, counters included,
  which only a machine of the same kind can reproduce; the file keeps those of several kinds.
"""

import contextlib
import hashlib
import itertools
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from parity_continuous import FRAGILE, FragilePendulum
from parity_harness import Driven, DrivenByDataset
from torch import Tensor

from rl_training.config import TrainConfig
from rl_training.datasets.builder import collected
from rl_training.datasets.dataset import Dataset, RecordedIn
from rl_training.datasets.recording import Episode, Recording
from rl_training.envs.tasks import probes
from support.datasets import episodes_of

FILE = Path(__file__).parent / "traces.json"
TOLERANCE = 1e-9
UPDATES = 18


class StrictPole(CartPoleEnv):
    """Falls at half the angle, so that even a policy that has learned a little sees some episodes end."""

    def __init__(self) -> None:
        super().__init__()
        self.theta_threshold_radians /= 2


class DictPendulum(FragilePendulum):
    """The same pendulum, its observation in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(
            {
                "speed": spaces.Box(-8.0, 8.0, (1,), np.float32),
                "where": spaces.Box(-1.0, 1.0, (2,), np.float32),
            }
        )

    def _get_obs(self) -> Any:
        obs = super()._get_obs()
        return {"speed": obs[2:], "where": obs[:2]}

    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = super(FragilePendulum, self).step([action.sum()])
        return obs, reward, bool(abs(obs["speed"][0]) > 4), truncated, info


POLE, DICT_PENDULUM = "StrictPole-v0", "DictPendulum-v0"
gymnasium.register(POLE, entry_point=StrictPole, disable_env_checker=True)
gymnasium.register(DICT_PENDULUM, entry_point=DictPendulum, disable_env_checker=True)
for _probe in (
    probes.DictTarget,
    probes.MultiBinaryTarget,
    probes.MultiDiscreteTarget,
    probes.NestedDictTarget,
):
    gymnasium.register(f"{_probe.__name__}-v0", entry_point=_probe, disable_env_checker=True)

# with these limits some episodes end by the clock and some before it
LIMITS = {POLE: 14, FRAGILE: 12, DICT_PENDULUM: 12}

ON_POLICY: dict[str, Any] = {
    "num_envs": 2, "total_timesteps": UPDATES * 20, "num_steps": 10, "learning_rate": 3e-3, "ent_coef": 0.01,
    "hidden_sizes": (12, 8),
}  # fmt: skip
PPO = ON_POLICY | {"batch_size": 10, "update_epochs": 2}
# the ring goes round, and windows of several steps wait for their rewards at its edge
OFF_POLICY: dict[str, Any] = {
    "num_envs": 2, "total_timesteps": 80 + 2 * UPDATES, "learning_starts": 80, "train_freq": 4, "gradient_steps": 2,
    "batch_size": 16, "buffer_size": 90, "learning_rate": 3e-3, "hidden_sizes": (12, 8),
}  # fmt: skip
DQN = OFF_POLICY | {"target_update_every_updates": 8, "learning_rate": 3e-2, "exploration_fraction": 1.0}
CONTINUOUS = OFF_POLICY | {"tau": 0.05}
OFFLINE: dict[str, Any] = {
    "dataset": "recorded", "total_updates": UPDATES, "held_out_fraction": 0.1, "batch_size": 16, "learning_rate": 3e-3,
    "hidden_sizes": (12, 8),
}  # fmt: skip
C51 = {"distribution": "c51", "num_atoms": 11, "v_min": -2.0, "v_max": 14.0}
RAINBOW = C51 | {"double": True, "dueling": True, "prioritized": True, "n_step": 3, "noisy": True}
ENSEMBLE = {"num_critics": 10, "critic_subset": 2}
DDPG = {"num_critics": 1, "policy_delay": 1, "target_policy_noise": 0.0}
SMOOTH: dict[str, Any] = {"use_sde": True, "log_std_init": -1.0}
OBS, REWARD = {"normalize_obs": True}, {"normalize_reward": True}
# followed over half of the budget only: where a clipping range of 0 is near, the last bit of a ratio decides
FALLING = {"total_timesteps": 2 * PPO["total_timesteps"]}


@dataclass(frozen=True)
class Case:
    """One configuration that is followed."""

    algo: str
    env_id: str
    settings: dict[str, Any]

    @property
    def config(self) -> TrainConfig:
        """The whole configuration of the run."""
        limit = LIMITS.get(self.env_id)
        config = TrainConfig(
            algo=self.algo,
            env_id=self.env_id,
            seed=11,
            env_kwargs={} if limit is None else {"max_episode_steps": limit},
            dataset=self.settings.get("dataset"),
        )
        return config.with_overrides(**self.settings)


def _ppo(env_id: str = POLE, **settings: Any) -> Case:
    return Case("ppo", env_id, PPO | settings)


def _a2c(env_id: str = POLE, **settings: Any) -> Case:
    return Case("a2c", env_id, ON_POLICY | settings)


def _dqn(env_id: str = POLE, **settings: Any) -> Case:
    return Case("dqn", env_id, DQN | settings)


def _sac(env_id: str = FRAGILE, **settings: Any) -> Case:
    return Case("sac", env_id, CONTINUOUS | settings)


def _td3(env_id: str = FRAGILE, **settings: Any) -> Case:
    return Case("td3", env_id, CONTINUOUS | settings)


def _offline(algo: str, env_id: str = FRAGILE, **settings: Any) -> Case:
    return Case(algo, env_id, OFFLINE | settings)


COLUMNS = ("actions", "rewards", "terminations", "truncations")


def recorded(env_id: str) -> Dataset:
    """Return a dataset of random actions, in torch's default floating type."""
    env = gymnasium.make(env_id, max_episode_steps=LIMITS[env_id])
    episodes = [
        Episode({"": np.array(own["observations"])}, *(np.array(own[name]) for name in COLUMNS))
        for own in episodes_of(env, 20)
    ]
    steps = sum(len(episode) for episode in episodes)
    return collected(
        Recording(
            "recorded", env.observation_space, env.action_space, steps, len(episodes), lambda: iter(episodes),
            RecordedIn(env_id),
        )
    )  # fmt: skip


CASES: dict[str, Case] = {
    "ppo": _ppo(),
    "ppo continuous": _ppo(FRAGILE),
    "ppo value clipping": _ppo(clip_vloss=True),
    "ppo target_kl": _ppo(target_kl=5e-5),
    "ppo shared network": _ppo(shared_network=True),
    "ppo raw advantages": _ppo(normalize_advantage=False),
    "ppo uniform initialisation": _ppo(orthogonal_init=False),
    "ppo linear schedules": _ppo(**FALLING, learning_rate_schedule="linear", clip_coef_schedule="linear"),
    "ppo cosine schedules": _ppo(**FALLING, learning_rate_schedule="cosine", clip_coef_schedule="cosine"),
    "ppo normalize_obs": _ppo(**OBS),
    "ppo normalize_reward": _ppo(FRAGILE, **REWARD),
    "ppo normalize both": _ppo(FRAGILE, **OBS, **REWARD),
    "ppo dict": _ppo("NestedDictTarget-v0"),
    "ppo dict normalize_obs": _ppo(DICT_PENDULUM, **OBS),
    "ppo multi-discrete": _ppo("MultiDiscreteTarget-v0"),
    "ppo multi-binary": _ppo("MultiBinaryTarget-v0"),
    "ppo state-dependent noise": _ppo(FRAGILE, **SMOOTH),
    "ppo state-dependent noise of 4 steps, shared network": _ppo(
        FRAGILE, **SMOOTH, sde_sample_freq=4, shared_network=True
    ),
    "a2c": _a2c(),
    "a2c continuous": _a2c(FRAGILE),
    "a2c shared network": _a2c(shared_network=True),
    "a2c normalized advantages": _a2c(normalize_advantage=True),
    "a2c linear schedule": _a2c(learning_rate_schedule="linear"),
    "a2c normalize both": _a2c(FRAGILE, **OBS, **REWARD),
    "a2c dict": _a2c("DictTarget-v0"),
    "a2c multi-discrete": _a2c("MultiDiscreteTarget-v0"),
    "a2c multi-binary": _a2c("MultiBinaryTarget-v0"),
    "a2c state-dependent noise": _a2c(FRAGILE, **SMOOTH, sde_sample_freq=3),
    "dqn": _dqn(),
    "dqn squared error": _dqn(td_loss="mse"),
    "dqn double": _dqn(double=True),
    "dqn dueling": _dqn(dueling=True),
    "dqn prioritized": _dqn(prioritized=True),
    "dqn n_step": _dqn(n_step=3),
    "dqn noisy": _dqn(noisy=True),
    "dqn c51": _dqn(**C51),
    "dqn quantile": _dqn(distribution="quantile", num_quantiles=7),
    "dqn soft target": _dqn(tau=0.1, target_update_every_updates=1),
    "dqn target by timesteps": _dqn(target_update_every_updates=None, target_update_every_timesteps=12),
    "dqn linear schedule": _dqn(learning_rate_schedule="linear"),
    "dqn normalize_obs": _dqn(**OBS),
    "dqn normalize_reward": _dqn(**REWARD),
    "dqn dict": _dqn("DictTarget-v0"),
    "rainbow": _dqn(**RAINBOW),
    "rainbow dict normalize both": _dqn("DictTarget-v0", **RAINBOW, **OBS, **REWARD),
    "sac": _sac(),
    "sac fixed temperature": _sac(ent_coef=0.2),
    "sac ensemble": _sac(**ENSEMBLE),
    "sac n_step": _sac(n_step=3),
    "sac cosine schedule": _sac(learning_rate_schedule="cosine"),
    "sac normalize_obs": _sac(**OBS),
    "sac normalize_reward": _sac(**REWARD),
    "sac normalize both": _sac(**OBS, **REWARD),
    "sac dict": _sac(DICT_PENDULUM),
    "sac state-dependent noise": _sac(**SMOOTH),
    "sac state-dependent and added noise": _sac(
        **SMOOTH, **OBS, sde_sample_freq=3, action_noise="gaussian", train_freq=16, gradient_steps=8
    ),
    "sac correlated noise": _sac(action_noise="ornstein_uhlenbeck", action_noise_sigma=0.3),
    "td3": _td3(),
    "td3 correlated noise": _td3(action_noise="ornstein_uhlenbeck", action_noise_sigma=0.3),
    "td3 n_step": _td3(n_step=3),
    "td3 normalize both": _td3(**OBS, **REWARD),
    "td3 dict normalize_obs": _td3(DICT_PENDULUM, **OBS),
    "sac layer norm": _sac(critic_layer_norm=True),
    "td3 layer norm": _td3(critic_layer_norm=True),
    "td3_bc": _offline("td3_bc", tau=0.05),
    "td3_bc normalize_obs": _offline("td3_bc", tau=0.05, **OBS),
    "rebrac": _offline("rebrac", tau=0.05, critic_penalty=0.5),
    "cql": _offline("cql", tau=0.05, num_sampled_actions=3),
    "cql layer norm": _offline("cql", tau=0.05, num_sampled_actions=3, critic_layer_norm=True),
    "bc": _offline("bc", POLE),
    "bc continuous": _offline("bc"),
    "bc maximum likelihood": _offline("bc", imitation="distribution"),
    "iql": _offline("iql", tau=0.05),
    "iql cosine schedule of the actor": _offline("iql", tau=0.05, actor_learning_rate_schedule="cosine", **OBS),
    "awac": _offline("awac", tau=0.05),
    "cql discrete": _offline("cql", POLE, tau=0.05),
    "ddpg": _td3(**DDPG),
}  # fmt: skip

Checksums = list[tuple[float, float]]


def driven_by(case: Case) -> Driven:
    """Return the parts for a case, with the dataset that it learns from, if it does."""
    if not case.config.offline:
        return Driven(case.config)
    dataset = recorded(case.env_id)
    assert 0 < dataset.terminated.sum() < dataset.num_episodes, "the trace must cover both kinds of end"
    return DrivenByDataset(case.config, dataset)


def followed(case: Case) -> Iterator[Driven]:
    """Drive a case; yield after each update, in torch's default floating type."""
    driven = driven_by(case)
    try:
        for _ in itertools.islice(driven.updates(), UPDATES):
            yield driven
    finally:
        driven.close()
    if case.env_id in LIMITS and not case.config.offline:
        assert driven.stepper.terminations > 0, "the trace must cover finished tasks"
        assert driven.stepper.truncations > 0, "the trace must cover truncated episodes"


def tensors_of(state: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a nested state with its path, sorted."""
    if isinstance(state, Tensor):
        yield name, state.detach()
    elif isinstance(state, dict):
        for key in sorted(state):
            yield from tensors_of(state[key], f"{name}/{key}")


def checksum(tensors: list[Tensor]) -> float:
    """Return a sum that knows sign and place of every number and in which nothing cancels.

    A number v at place i counts as 1.5 |v| + 0.5 cos(i) v, that is between once and twice its size.
    """
    values = torch.cat([tensor.reshape(-1).cpu() for tensor in tensors])
    places = torch.arange(len(values), dtype=torch.float64)
    return float((1.5 * values.abs() + 0.5 * places.cos() * values).sum())


def checksums(driven: Driven) -> tuple[float, float]:
    """Return the checksums of what is learned and of the optimizers' moments; float32 counters are left out."""
    learned: list[Tensor] = []
    moments: list[Tensor] = []
    for name, tensor in tensors_of(driven.state_dict()):
        if tensor.dtype == torch.float64:
            (moments if name.startswith("/optimizer") else learned).append(tensor)
    return checksum(learned), checksum(moments)


def digest(driven: Driven) -> str:
    """Return a short hash of the bytes of every tensor the learner would save."""
    sha = hashlib.sha256()
    for name, tensor in tensors_of(driven.state_dict()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.contiguous().numpy().tobytes())
    return sha.hexdigest()[:10]


@contextlib.contextmanager
def one_thread_of(dtype: torch.dtype) -> Iterator[None]:
    """Compute in `dtype` on one thread."""
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(dtype)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        torch.set_num_threads(threads)


def float64_trace(case: Case) -> Checksums:
    """Return the two checksums after each update."""
    with one_thread_of(torch.float64):
        return [checksums(driven) for driven in followed(case)]


def float32_trace(case: Case) -> list[str]:
    """Return the hash after each update."""
    with one_thread_of(torch.float32):
        return [digest(driven) for driven in followed(case)]


def environment_key() -> str:
    """Name everything that decides the last bits of float32: libraries, Python, and the kind of processor."""
    libraries = f"torch {torch.__version__}, numpy {np.__version__}, gymnasium {gymnasium.__version__}"
    python = f"python {sys.version_info.major}.{sys.version_info.minor}"
    return f"{libraries}, {python}, {torch.backends.cpu.get_cpu_capability()}, {_processor()}"


def _processor() -> str:
    """Return the processor's name with a hash of what it can do, by which numerical libraries choose their code."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", 1)[0].splitlines()
    except OSError:
        return f"{platform.system()} {platform.machine()} {platform.processor()}"
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = " ".join(sorted(facts.get("flags", facts.get("Features", "")).split()))
    name = facts.get("model name", platform.machine())
    return f"{name} {hashlib.sha256(flags.encode()).hexdigest()[:8]}"


def read_traces() -> dict[str, Any]:
    """Return the recorded traces."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {"float64": {}, "float32": {}}


def written(traces: dict[str, Any]) -> str:
    """Return the file's text: JSON with one line per case."""
    float64 = _lines(traces["float64"], "  ")
    machines = [
        f"  {json.dumps(key)}: {{\n{_lines(cases, '   ')}\n  }}" for key, cases in traces["float32"].items()
    ]
    return f'{{\n "float64": {{\n{float64}\n }},\n "float32": {{\n' + ",\n".join(machines) + "\n }\n}\n"


def _lines(cases: dict[str, Any], indent: str) -> str:
    return ",\n".join(
        f"{indent}{json.dumps(name)}: {json.dumps(trace, separators=(',', ':'))}"
        for name, trace in cases.items()
    )


def kept(recorded: Checksums, trace: Checksums) -> Checksums:
    """Return the recorded checksums if the new ones equal them to `TOLERANCE`: rounding is no change."""
    same = len(recorded) == len(trace) and np.allclose(trace, recorded, rtol=TOLERANCE, atol=0)
    return recorded if same else trace


def renew() -> None:
    """Follow every case and write the file; hashes of other kinds of machines stay, and checksums that still hold."""
    traces = read_traces()
    recorded = traces["float64"]
    traces["float64"] = {
        name: kept(recorded.get(name, []), float64_trace(case)) for name, case in CASES.items()
    }
    traces["float32"][environment_key()] = {name: float32_trace(case) for name, case in CASES.items()}
    FILE.write_text(written(traces), encoding="utf-8")


if __name__ == "__main__":
    renew()
