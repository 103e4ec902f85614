"""A row of `make world`: algorithms in one environment, from training to evaluating the saved and loaded agent."""

import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import rl_training
from rl_training.algorithms import ALGORITHMS
from rl_training.config import TrainConfig
from rl_training.core.errors import RunFault, UserError
from rl_training.envs.factory import make_env
from rl_training.experiment import environment_check as env_check
from rl_training.experiment import run
from rl_training.experiment.files import write_text
from rl_training.experiment.logs.rows import read_rows

SECONDS = 300
"""Seconds after which a cell counts as stuck."""
CHECK = "check-env"
"""The column of `rl_training.check_env`."""
ON_POLICY: dict[str, Any] = {"num_steps": 32, "num_envs": 2, "total_timesteps": 128}
OFF_POLICY: dict[str, Any] = {
    "learning_starts": 64, "batch_size": 32, "buffer_size": 512, "num_envs": 2, "total_timesteps": 96,
}  # fmt: skip
"""Enough for two rollouts or a dozen batches: this tests that training works, not how well."""


@dataclass(frozen=True)
class Place:
    """An environment and the settings it needs."""

    suite: str
    env_id: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    build: Callable[..., Any] | None = None
    label: str = ""
    path: Path | None = None
    """Folder of packages that replace installed ones."""

    @property
    def name(self) -> str:
        """The row of the table."""
        return self.label or self.env_id


Work = Callable[[Place, str], dict[str, Any]]


def prepare() -> None:
    """Skip the learning curve, which is slow for such short runs, and import shared modules once."""
    warnings.filterwarnings("ignore", message=".*max_eval_episode_steps.*")  # cut short on purpose
    run.plot_learning_curve = lambda *arguments, **options: None
    env_check.MAX_STEPS = 100  # fewer episodes: only the messages matter
    for algo in ("ppo", "sac"):
        tried(Place("", "Pendulum-v1"), algo)


def attempts(place: Place, columns: Sequence[str], work: Work) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the outcome and the output of each cell of a row as soon as it ends.

    A process does one after the other, so that packages are imported once; if it dies or hangs, another does the rest.
    """
    with tempfile.TemporaryDirectory(prefix="world-") as folder:
        left = list(columns)
        while left:
            child = os.fork()
            if child == 0:
                _be_the_child(place, left, work, Path(folder))
            while left:
                end = _wait(child, Path(folder, f"{left[0]}.json"))
                column = left.pop(0)
                out = Path(folder, f"{column}.out")
                noise = _lines(out.read_text(errors="replace") if out.exists() else "", folder)
                if isinstance(end, str):
                    yield column, _cell({"outcome": "fault", "said": end}, noise)
                    break
                yield column, _cell(end, noise)
            else:
                os.waitpid(child, 0)


def tried(place: Place, column: str) -> dict[str, Any]:
    """Return the outcome: ok, rejected with an error message, or a fault."""
    work = _check if column == CHECK else _cycle
    try:
        return {"outcome": "ok"} | work(place, column)
    except (UserError, RunFault) as error:
        sentence, _, _ = str(error).partition(" (last good checkpoint")  # which has a path of this machine
        return {"outcome": "refused", "said": sentence}


def config_of(place: Place, algo: str, folder: str, **settings: Any) -> TrainConfig:
    """Return the config of a cell: defaults, except for what makes it short."""
    base = OFF_POLICY if algo in ("dqn", "sac", "td3") else ON_POLICY
    common = {"num_eval_episodes": 1, "max_eval_episode_steps": 50, "eval_every_timesteps": 10**9}
    config = TrainConfig(algo=algo, env_id=place.env_id, env_kwargs=place.kwargs, output_dir=folder)
    epochs = {"update_epochs": 2} if "ppo" in algo else {}
    return config.with_overrides(**common | base | epochs | place.settings | settings)


def _cycle(place: Place, algo: str) -> dict[str, Any]:
    """Train, save, load, predict, evaluate."""
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(place, algo, folder)
        model = ALGORITHMS[algo](config, env=place.build).learn()
        (made,) = Path(folder).iterdir()
        rows = read_rows(made / "metrics.jsonl")
        if not any(name.startswith("train/") for row in rows for name in row):
            return {"outcome": "fault", "said": "nothing was learned from"}
        model.save(Path(folder, "agent"))
        loaded = rl_training.load(Path(folder, "agent"), env=place.build)
        env = make_env(model.agent.config, 0, factory=place.build)()
        obs, info = env.reset()
        masks = info.get("action_mask") if model.agent.config.use_action_masks == "on" else None
        actions = [each.predict(obs, action_masks=masks)[0] for each in (model, loaded)]
        if not np.array_equal(*actions):
            return {"outcome": "fault", "said": "the loaded agent acts otherwise"}
        chosen = np.asarray(actions[0])
        if not env.action_space.contains(chosen.item() if env.action_space.shape == () else chosen):
            return {"outcome": "fault", "said": f"{chosen} is no action of {env.action_space}"}
        env.close()
        if loaded.evaluate(1)["num_episodes"] != 1:
            return {"outcome": "fault", "said": "no episode was evaluated"}
    return {}


def _check(place: Place, column: str) -> dict[str, Any]:
    report = rl_training.check_env(place.build or place.env_id, env_kwargs=place.kwargs)
    if report.problems:
        return {"outcome": "refused", "said": "; ".join(report.problems)}
    told = [remark for remark in report.remarks if "across resets" in remark or "not be exact" in remark]
    return {"remarks": told} if told else {}


def _be_the_child(place: Place, columns: Sequence[str], work: Work, folder: Path) -> None:
    """Run with output redirected to files, then exit silently."""
    try:
        os.chdir(folder)
        if place.path is not None:
            sys.path.insert(0, str(place.path))
        for column in columns:
            stream = os.open(folder / f"{column}.out", os.O_WRONLY | os.O_CREAT, 0o644)
            os.dup2(stream, 1)
            os.dup2(stream, 2)
            found = _caught(place, column, work)
            sys.stdout.flush()
            sys.stderr.flush()
            write_text(folder / f"{column}.json", json.dumps(found))
    finally:
        os._exit(0)


def _caught(place: Place, column: str, work: Work) -> dict[str, Any]:
    try:
        return work(place, column)
    except BaseException as error:
        traceback.print_exc()
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        return {"outcome": "fault", "said": text}


def _wait(child: int, result: Path) -> dict[str, Any] | str:
    """Return the outcome of the next cell, or the reason why there is none."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if result.exists():
            found: dict[str, Any] = json.loads(result.read_text())
            return found
        if os.waitpid(child, os.WNOHANG)[0]:
            return "the process died"
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"not done after {SECONDS} seconds"


def _cell(found: dict[str, Any], noise: list[str]) -> dict[str, Any]:
    return found | ({"noise": noise} if noise else {})


def _lines(text: str, folder: str) -> list[str]:
    """Return the printed lines, without duplicates and local paths."""
    for prefix in (
        f"{sys.prefix}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/",
        folder,
    ):
        text = text.replace(prefix, "")
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and "logger.warn(" not in line]
    return [line[:300] for line in dict.fromkeys(lines)][-12:]
