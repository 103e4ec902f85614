"""A policy with all it needs to act in an environment: predict, evaluate, record, save."""

import os
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.base import Parts
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.protocols import Policy
from rl_training.core.seeding import EVALUATION_ACTIONS, EVALUATION_EPISODES, numpy_generator
from rl_training.core.spaces import space_text
from rl_training.core.types import Array, EnvSpec, Progress, State
from rl_training.envs.actions import ActionAdapter
from rl_training.envs.factory import EnvFactory, make_env, make_vector_env, registered_spec
from rl_training.envs.observations import batched
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment.checkpointing import (
    Checkpoint,
    find_checkpoint,
    read_checkpoint,
    read_newest,
    restore_model,
    restoring,
    write_checkpoint,
)
from rl_training.experiment.files import fresh_file, refuse_link_inside, refuse_strange_files
from rl_training.experiment.trust import refuse_foreign_module
from rl_training.runtime.evaluator import Evaluator

MAX_EVALUATION_ENVS = 10


class Agent:
    """Acts; never learns. `state` is what a checkpoint of it holds."""

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvSpec,
        parts: Parts,
        *,
        state: dict[str, State],
        progress: Progress,
        path: Path | None = None,
        factory: EnvFactory | None = None,
    ) -> None:
        self.config, self.spec, self.state, self.progress, self.path = config, spec, state, progress, path
        self.policy: Policy = parts.learner.policy
        self._factory = factory
        self._adapter = ActionAdapter(spec.action_space)
        self._rng = numpy_generator(config.seed, EVALUATION_ACTIONS)

    @property
    def timesteps(self) -> int:
        """How long it has trained."""
        return self.progress.timesteps

    def predict(self, obs: Any, *, deterministic: bool = True) -> Array:
        """Return the action in the environment's units for one observation, or actions for a batch."""
        batch, is_batch = batched(self.spec.observation_space, obs)
        actions = self._adapter.to_env(self.policy.act(batch, deterministic=deterministic, rng=self._rng))
        return actions if is_batch else actions[0]

    def evaluate(self, num_episodes: int = 10, *, deterministic: bool | None = None) -> dict[str, Any]:
        """Play `num_episodes` in environments of its own; return the summary."""
        if num_episodes < 1:
            raise UserError(f"num_episodes is {num_episodes}; use 1 or more")
        stepper = evaluation_stepper(self.config, num_episodes, self._factory)
        chosen = self.config.eval_deterministic if deterministic is None else deterministic
        try:
            evaluation = Evaluator(stepper, self.policy).evaluate(
                num_episodes, deterministic=chosen, rng=numpy_generator(self.config.seed, EVALUATION_ACTIONS)
            )
        finally:
            stepper.close()
        return evaluation.summary()

    def save(self, path: str | PathLike[str]) -> Path:
        """Write a checkpoint folder at `path`."""
        target = Path(path)
        if target.is_file() or (
            target.is_dir() and any(target.iterdir()) and not (target / "manifest.json").exists()
        ):
            raise UserError(f"{path} exists and is not a saved agent; choose another folder")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            facts = {"spaces": describe_spaces(self.spec), "evaluation": None}
            write_checkpoint(
                target, config=self.config, progress=self.progress, state=self.state, facts=facts
            )
            return target
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error


def evaluation_stepper(config: TrainConfig, num_episodes: int, factory: EnvFactory | None) -> VectorStepper:
    """Return environments for an evaluation: other seeds than training has, and the same episodes every time."""
    backend = "native" if _only_native(config, factory) else "sync"
    env = make_vector_env(
        config,
        min(num_episodes, MAX_EVALUATION_ENVS),
        factory=factory,
        stream=EVALUATION_EPISODES,
        backend=backend,
    )
    return RestartingStepper(env, seed=config.seed + 1_000_003 if backend == "native" else None)


class RestartingStepper(VectorStepper):
    """Restarts the episode streams with every reset, so that all evaluations start from the same states."""

    def reset(self) -> None:
        """Play the first episodes again."""
        self.restart_streams()
        super().reset()


def _only_native(config: TrainConfig, factory: EnvFactory | None) -> bool:
    return config.env_backend == "native" and factory is None and registered_spec(config).entry_point is None


def probe_spec(config: TrainConfig, factory: EnvFactory | None) -> EnvSpec:
    """Return the spaces of the config's environment, by building one."""
    if _only_native(config, factory):
        vector = make_vector_env(config, 1)
        vector.close()
        return EnvSpec(vector.single_observation_space, vector.single_action_space, config.num_envs)
    env = make_env(config, 0, factory=factory)()
    env.close()
    return EnvSpec(env.observation_space, env.action_space, config.num_envs)


def build_parts(config: TrainConfig, spec: EnvSpec) -> Parts:
    """Return learner and source of the config's algorithm."""
    return ALGORITHMS[config.algo].build(config, spec, choose_device(config.device))


def describe_spaces(spec: EnvSpec) -> dict[str, str]:
    """Return the spaces as text, for a manifest."""
    return {
        "observation_space": space_text(spec.observation_space),
        "action_space": space_text(spec.action_space),
    }


def check_spaces(checkpoint: Checkpoint, spec: EnvSpec) -> None:
    """Refuse an environment whose spaces are not those the checkpoint was trained with."""
    now, saved = describe_spaces(spec), checkpoint.facts["spaces"]
    for name, space in now.items():
        if saved[name] != space:
            raise UserError(
                f"checkpoint {checkpoint.path} was trained with {name} {saved[name]}, "
                f"but environment '{checkpoint.config.env_id}' now has {space}"
            )


def choose_device(name: str) -> torch.device:
    """Return the torch device; `auto` is the CPU, as all networks of this version are small."""
    try:
        device = torch.device("cpu" if name == "auto" else name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise UserError(
            f"device '{name}' is not available here ({str(error).splitlines()[0]}); use 'cpu'"
        ) from error
    return device


def new_agent(config: TrainConfig, *, factory: EnvFactory | None = None) -> Agent:
    """Return an agent with initial weights."""
    spec = probe_spec(config, factory)
    parts = build_parts(config, spec)
    return Agent(config, spec, parts, state=parts.learner.state_dict(), progress=Progress(), factory=factory)


def load_agent(
    path: str | PathLike[str], *, env: EnvFactory | str | None = None, trust_modules: bool = False
) -> Agent:
    """Return the agent at `path`: a saved folder, a run, a checkpoint, or `last`/`best` of one.

    `env` puts it into another environment: an id, or a function that builds one. A module that the agent itself names
    is imported if this user made it, or with `trust_modules`.
    """
    is_run = (Path(path) / "checkpoints").is_dir()  # then a damaged newest checkpoint is passed over
    if is_run:
        refuse_strange_files(Path(path) / "checkpoints")
    checkpoint = read_newest(Path(path)) if is_run else read_checkpoint(find_checkpoint(path))
    factory = None if isinstance(env, str) else env
    if isinstance(env, str):
        checkpoint = replace(checkpoint, config=checkpoint.config.with_overrides(env_id=env))
    refuse_foreign_module(
        checkpoint.path,
        checkpoint.config.env_id,
        signed=checkpoint.signed,
        allowed=trust_modules or env is not None,
    )
    spec = probe_spec(checkpoint.config, factory)
    check_spaces(checkpoint, spec)
    parts = build_parts(checkpoint.config, spec)
    policy = parts.learner.policy
    assert isinstance(policy, torch.nn.Module)
    with restoring(checkpoint.path):
        restore_model(policy, checkpoint.state["model"], checkpoint.path)
    return Agent(
        checkpoint.config,
        spec,
        parts,
        state=checkpoint.state,
        progress=checkpoint.progress,
        path=checkpoint.path,
        factory=factory,
    )


def record_video(agent: Agent, folder: Path, num_episodes: int = 1) -> list[Path]:
    """Play episodes and write each as an mp4 file; return the files."""
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise UserError("recording needs the video extra; pip install 'rl-training[video]'") from error
    if agent.path is not None:
        checkpoints = agent.path.parent
        refuse_link_inside(checkpoints.parent if checkpoints.name == "checkpoints" else agent.path, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot record into {folder}: {error.strerror}") from error
    os.environ.setdefault(
        "SDL_VIDEODRIVER", "dummy"
    )  # frames come as arrays: no screen is needed, or complained about
    env = make_env(
        agent.config, 0, factory=agent._factory, stream=EVALUATION_EPISODES, render_mode="rgb_array"
    )()
    written = []
    try:
        for episode in range(num_episodes):
            frames, total = _play(env, agent)
            path = folder / f"episode_{episode}_return_{total:.0f}.mp4"
            height, width = frames[0].shape[:2]
            fps = float(env.metadata.get("render_fps", 30))
            with fresh_file(path) as temporary:
                writer = imageio_ffmpeg.write_frames(
                    str(temporary), (width, height), fps=fps, macro_block_size=2, ffmpeg_log_level="error"
                )
                writer.send(None)
                for frame in frames:
                    writer.send(np.ascontiguousarray(frame))
                writer.close()
            written.append(path)
    finally:
        env.close()
    return written


def _play(env: gymnasium.Env[Any, Any], agent: Agent) -> tuple[list[Array], float]:
    obs, _ = env.reset()
    frames, total, ended = [_frame(env)], 0.0, False
    while not ended:
        obs, reward, terminated, truncated, _ = env.step(agent.predict(obs))
        frames.append(_frame(env))
        total += float(reward)
        ended = terminated or truncated
    return frames, total


def _frame(env: gymnasium.Env[Any, Any]) -> Array:
    frame = env.render()
    if not isinstance(frame, np.ndarray):
        raise UserError(
            f"environment '{env.spec.id if env.spec else env}' cannot render frames, so there is no video"
        )
    return frame
