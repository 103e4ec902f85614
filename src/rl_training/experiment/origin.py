"""How a run began, kept beside its config: until its first checkpoint, this is all there is to go on from."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig, load_config
from rl_training.core.errors import UserError
from rl_training.experiment.files import read_json, write_json, write_text
from rl_training.experiment.trust import imports_nothing, is_signed, sign_text

NAME = ".origin.json"


@dataclass(frozen=True)
class Origin:
    """The config of a run, the checkpoint whose state it began with, and the class that builds its parts."""

    config: TrainConfig
    start_from: str | None = None
    algorithm: str | None = None
    """Only of a class with a build of its own."""
    started_from: dict[str, Any] | None = None
    """Where the weights come from that a new run begins with; `start_from` then has them, within the run's folder."""
    env_factory: bool = False
    """The environment was built by a function, of which nothing is known here."""
    signed: bool = False
    """Written by this user, and unchanged since."""

    def write(self, folder: Path) -> None:
        """Write `config.yaml` and what belongs to it."""
        text = self.config.to_yaml()
        write_text(folder / "config.yaml", text)
        begun: dict[str, Any] = {
            "start_from": self.start_from,
            "algorithm": self.algorithm,
            "env_factory": self.env_factory,
        } | ({} if self.started_from is None else {"started_from": self.started_from})
        if imports_nothing(self.config):
            begun["signature"] = sign_text(_signed_text(text, begun))
        write_json(folder / NAME, begun)


def read_origin(run_dir: Path) -> Origin:
    """Return how a run began; of one that only has a config, that."""
    config = load_config(run_dir / "config.yaml")
    if not (run_dir / NAME).is_file():
        return Origin(config)
    begun = read_json(run_dir / NAME)
    if not isinstance(begun, dict):
        raise UserError(f"{run_dir / NAME} is damaged; delete it to begin with the config alone")
    text = (run_dir / "config.yaml").read_text(encoding="utf-8")
    signed = is_signed(_signed_text(text, begun), begun.get("signature"))
    start_from, algorithm = (
        None if begun.get(name) is None else str(begun[name]) for name in ("start_from", "algorithm")
    )
    record = begun.get("started_from")
    started_from = dict(record) if isinstance(record, dict) else None
    return Origin(config, start_from, algorithm, started_from, begun.get("env_factory") is True, signed)


def _signed_text(config: str, begun: dict[str, Any]) -> str:
    names = ["start_from", "algorithm", *(["started_from"] if "started_from" in begun else [])]
    return config + json.dumps({name: begun.get(name) for name in names})
