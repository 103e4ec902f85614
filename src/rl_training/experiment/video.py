"""Records videos of an agent as mp4 files."""

import contextlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator

from rl_training.config import TrainConfig
from rl_training.core.errors import RunFault, UserError
from rl_training.core.seeding import (
    EVALUATION_ACTIONS,
    EVALUATION_EPISODES,
    evaluation_generators,
    numpy_generator,
)
from rl_training.core.types import Array, PolicyState
from rl_training.envs.factory import make_env, registered_spec
from rl_training.envs.games.opening import FAMILIES, family_of, names_game
from rl_training.envs.masks import NAME as MASK
from rl_training.experiment.agent import Agent
from rl_training.experiment.files import refuse_link_inside, scratch_file
from rl_training.experiment.joint_actions import JointActions

NEED_PYGAME = tuple(f"gymnasium.envs.{family}" for family in ("classic_control", "box2d", "toy_text"))
NEED_MUJOCO = ("mujoco", "gymnasium_robotics", "dm_control")


def record_video(agent: Agent, folder: Path, num_episodes: int = 1) -> list[Path]:
    """Play episodes and write each to an mp4 file; return the files."""
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise UserError("recording needs the video extra; pip install 'rl-training[video]'") from error
    if agent.path is not None:
        checkpoints = agent.path.parent
        refuse_link_inside(checkpoints.parent if checkpoints.name == "checkpoints" else agent.path, folder)
    # frames are arrays: pygame needs no display
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    with evaluation_generators(agent.config.seed):  # a callback may record the agent that is being trained
        config, factory = agent.playground()
        with _drawing(config.env_id):
            env = make_env(config, 0, factory=factory, stream=EVALUATION_EPISODES, render_mode="rgb_array")()
        for statistics in agent.statistics[:1]:
            env.new_statistics = statistics
            env.freeze_statistics()
        try:
            return [_record(imageio_ffmpeg, env, agent, folder, episode) for episode in range(num_episodes)]
        finally:
            env.close()


def can_record(config: TrainConfig) -> bool:
    """Return whether a video of the config's environment can be recorded here; it is not built to find out."""
    if not _installed("imageio_ffmpeg"):
        return False
    if names_game(config.env_id):
        return family_of(config.env_id) in FAMILIES and _installed("pygame")
    try:
        entry = registered_spec(config).entry_point
        maker = load_env_creator(entry) if isinstance(entry, str) else entry
    except Exception:  # built by a function, or its module cannot be imported
        return False
    family, modes = getattr(maker, "__module__", ""), getattr(maker, "metadata", {}).get("render_modes", ())
    if family.startswith(NEED_PYGAME) and not _installed("pygame"):
        return False
    has_screen = os.environ.get("DISPLAY") or os.environ.get("MUJOCO_GL")
    if any(name in family for name in NEED_MUJOCO) and not has_screen:
        return False
    return "rgb_array" in modes


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # its import is blocked
        return False


def _record(ffmpeg: Any, env: gymnasium.Env[Any, Any], agent: Agent, folder: Path, episode: int) -> Path:
    """Record one episode; the file is renamed at the end, because its name contains the return."""
    obs, info = env.reset()
    with _drawing(agent.config.env_id):
        frame = _frame(env, agent.config.env_id)
    try:  # not before, so that an environment without frames leaves no folder
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot record into {folder}: {error.strerror}") from error
    height, width = frame.shape[:2]
    fps = float(env.metadata.get("render_fps", 30))
    with scratch_file(folder, ".mp4") as temporary:
        writer = ffmpeg.write_frames(
            str(temporary), (width, height), fps=fps, macro_block_size=2, ffmpeg_log_level="error"
        )
        writer.send(None)
        writer.send(frame)
        total, steps, ended = 0.0, 0, False
        choose = _chooser(agent)
        while not ended and steps < agent.config.max_eval_episode_steps:
            action = choose(obs, info)
            obs, reward, terminated, truncated, info = env.step(action)
            writer.send(_frame(env, agent.config.env_id))
            total, steps, ended = total + float(reward), steps + 1, terminated or truncated
        writer.close()
        path = folder / f"episode_{episode}_return_{total:.0f}.mp4"
        os.replace(temporary, path)
    if not ended:
        warnings.warn(
            f"{path} is cut off: the episode did not end within {steps:,} steps (max_eval_episode_steps)",
            stacklevel=4,
        )
    return path


def _chooser(agent: Agent) -> Callable[[Any, Any], Array]:
    """Return a function that chooses the actions of one episode; for a game, those of all agents."""
    deterministic = agent.config.eval_deterministic
    if agent.spec.game is not None:
        players, rng = (
            JointActions(agent.spec.game, agent.policy),
            numpy_generator(agent.config.seed, EVALUATION_ACTIONS),
        )
        return lambda obs, info: players.act(obs, deterministic=deterministic, rng=rng)
    memory: PolicyState | None = None

    def choose(obs: Any, info: Any) -> Array:
        nonlocal memory
        masks = info.get(MASK) if agent.spec.masked else None
        action, memory = agent.act(obs, memory, deterministic=deterministic, action_masks=masks)
        return action

    return choose


@contextlib.contextmanager
def _drawing(env_id: str) -> Iterator[None]:
    """Report errors of the first frame; MuJoCo needs MUJOCO_GL to render without a display."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="glfw")  # its failure is reported below
        try:
            yield
        except Exception as error:
            simulated, chosen = "mujoco" in sys.modules, os.environ.get("MUJOCO_GL")
            ours = isinstance(error, UserError | RunFault)
            if ours and not (simulated and chosen):
                raise
            remedy, problem = "", str(error) if ours else f"{type(error).__name__}: {error}"
            if simulated:
                tried = f" is '{chosen}', which does not work here" if chosen else " is not set"
                remedy = f"; MUJOCO_GL{tried}: without a display, try MUJOCO_GL=egl or MUJOCO_GL=osmesa"
            raise UserError(
                f"environment '{env_id}' cannot render frames: {' '.join(problem.split())}{remedy}"
            ) from error


def _frame(env: gymnasium.Env[Any, Any], env_id: str) -> Array:
    frame = env.render()
    if not isinstance(frame, np.ndarray):
        raise UserError(f"environment '{env_id}' returns no rgb_array frames; videos need them")
    odd = [(0, side % 2) for side in frame.shape[:2]]  # codecs want even sides
    return np.ascontiguousarray(np.pad(frame, [*odd, (0, 0)], mode="edge"))
