"""Trust: a checkpoint may name modules to import, and those of an untrusted checkpoint are not imported by default.

Checkpoints that this user writes are signed with a key in the user's state folder. A valid signature means that the
file was written by this user and not changed since.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from pkgutil import iter_modules
from typing import get_type_hints

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.lookup import find_algorithm, is_called
from rl_training.config import TrainConfig
from rl_training.config.env_wrappers import wrapper_calls
from rl_training.config.object_paths import is_name
from rl_training.config.schedules import Schedule, function_name
from rl_training.config.train_config import OF_RAY
from rl_training.core.errors import UserError
from rl_training.envs.games.opening import FAMILIES, family_of, names_game
from rl_training.experiment.checkpoints.foreign_settings import large_counts, unusual_arguments

KEY_BYTES = 32
OUTPUTS = frozenset({"output_dir", "track"})
"""Settings that say where a run writes and what it sends; for Ray clusters see `without_foreign_cluster`."""
OWN_TASKS = "rl_training.envs.tasks"
"""The package with our own environments, whose modules only register them."""
HARMLESS_WRAPPERS = (
    "AddRenderObservation", "AddWhiteNoise", "AtariPreprocessing", "ClipAction", "ClipReward", "DelayObservation",
    "DiscretizeAction", "DiscretizeObservation", "DtypeObservation", "FilterObservation", "FlattenObservation",
    "FrameStackObservation", "GrayscaleObservation", "MaxAndSkipObservation", "NormalizeObservation",
    "NormalizeReward", "ObstructView", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics",
    "RepeatAction", "RescaleAction", "RescaleObservation", "ReshapeObservation", "ResizeObservation", "StickyAction",
    "TimeAwareObservation", "TimeLimit",
)  # fmt: skip
"""Wrappers of `gymnasium.wrappers` without side effects; RecordVideo, say, writes files.

Their arguments may still take memory or time, so those of an untrusted checkpoint are bounded (`foreign_settings`).
"""


def sign_text(text: str) -> str | None:
    """Return this user's signature of `text`, or None if there is no key and none can be created."""
    key = _read_key() or _make_key()
    return _signature(key, text) if key is not None else None


def is_signed(text: str, signature: object) -> bool:
    """Return whether `signature` is this user's signature of `text`."""
    if not isinstance(signature, str) or not signature.isascii():
        return False
    key = _read_key()
    return key is not None and hmac.compare_digest(_signature(key, text), signature)


def module_of(name: str) -> str:
    """Return the module that `module:Name` or the id of a game would import; nothing for packages that are known.

    >>> module_of("pettingzoo://classic/go_v5"), module_of("pettingzoo://theirs/go_v5"), module_of("theirs:Go-v5")
    ('', 'theirs', 'theirs')
    """
    if names_game(name):
        return "" if family_of(name) in FAMILIES else family_of(name)
    return name.rpartition(":")[0]


def module_is_imported(name: str) -> bool:
    """Return whether the module of a name is imported already, belongs to this package, or is not given."""
    module = module_of(name)
    return not module or module in sys.modules or module in own_modules()


@lru_cache(maxsize=1)
def own_modules() -> frozenset[str]:
    """Return the modules with our own environments, without importing them."""
    folder = Path(__file__).parents[2] / "envs" / "tasks"
    return frozenset([OWN_TASKS, *(f"{OWN_TASKS}.{module.name}" for module in iter_modules([str(folder)]))])


def imports_nothing(config: TrainConfig) -> bool:
    """Return whether all modules that a config names are imported already."""
    called = schedule_functions(config) + foreign_wrappers(config)
    own = [config.algo] if ":" in config.algo else []
    own += [name for _, name in foreign_players(config)]
    names = [config.env_id, config.algorithm.encoder, *own, *(name for _, name in called)]
    return all(module_is_imported(name) for name in names)


def schedule_functions(config: TrainConfig) -> list[tuple[str, str]]:
    """Return (setting, `module:function`) for each schedule that is a function."""
    hints = get_type_hints(type(config.algorithm))
    settings = [item.name for item in fields(config.algorithm) if hints[item.name] == Schedule]
    found = [(name, function_name(getattr(config.algorithm, name))) for name in settings]
    return [(name, function) for name, function in found if function is not None]


def foreign_wrappers(config: TrainConfig) -> list[tuple[str, str]]:
    """Return (setting, `module:Wrapper`) for each wrapper that may have side effects."""
    harmless = {f"gymnasium.wrappers:{name}" for name in HARMLESS_WRAPPERS}
    names = [name for name, _ in wrapper_calls(config.env_wrappers)]
    return [("env_wrappers", name) for name in names if name not in harmless]


def foreign_players(config: TrainConfig) -> list[tuple[str, str]]:
    """Return (setting, `module:function`) if a function plays against the agent in evaluations."""
    return [("eval_against", config.eval_against)] if is_name(config.eval_against) else []


class AlgorithmUnavailable(UserError):
    """The class of an algorithm may not be imported, or cannot be."""


@dataclass(frozen=True)
class Trust:
    """What may be used to read a checkpoint's settings, whose class belongs to its algorithm.

    By default nothing is imported for a checkpoint that is not signed by this user.
    """

    algorithm: type[Algorithm] | None = None
    """The class that the caller gave."""
    modules: bool = False
    """The caller trusts all modules that the checkpoint names."""

    def algorithm_of(self, source: object, algo: str, *, signed: bool) -> type[Algorithm]:
        """Return the class of an algorithm, imported only with permission."""
        if self.algorithm is not None and is_called(self.algorithm, algo):
            return self.algorithm
        module, separator, name = algo.partition(":")
        if separator and not (signed or self.modules):
            raise AlgorithmUnavailable(
                f"{source} is not signed by you and would import the module '{module}' for its algorithm '{algo}'; if "
                f"you trust that module, give --trust-modules (in Python: {name.rpartition('.')[2]}.load(path), or "
                "trust_modules=True)"
            )
        try:
            return find_algorithm(algo)
        except UserError as error:
            raise AlgorithmUnavailable(f"{source}: {error}") from error


NO_TRUST = Trust()


@dataclass(frozen=True)
class Permission:
    """Whether code that a checkpoint names may run: it is signed or trusted, or the caller gave the setting.

    Only for environments it matters whether the module is imported already. `os` and `subprocess` may be imported, and
    would be called with arguments of the checkpoint.
    """

    source: object = "this agent"
    granted: bool = True
    """The checkpoint is signed by this user or trusted."""
    given: frozenset[str] = frozenset()
    """Names of the settings that the caller gave."""

    def refuse_env(self, env_id: str) -> None:
        """Raise if the module of the environment would be imported without permission.

        A game of an unknown package is refused even if that is imported: its function would be called, with arguments.
        """
        harmless = not module_of(env_id) if names_game(env_id) else module_is_imported(env_id)
        if self.granted or "env_id" in self.given or harmless:
            return
        raise UserError(
            f"{self.source} is not signed by you and would import the module '{module_of(env_id)}'; if you "
            f"trust that module, give --env-id {env_id} or --trust-modules (in Python: env='{env_id}' or "
            "trust_modules=True)"
        )

    def refuse_encoder(self, config: TrainConfig) -> None:
        """Raise if the encoder would be imported, or one that the caller gave called with other arguments."""
        settings = config.algorithm
        module, separator, name = settings.encoder.partition(":")
        if self.granted or not separator:
            return
        if "encoder" not in self.given:
            raise UserError(
                f"{self.source} is not signed by you and would import the module '{module}' for its encoder "
                f"'{settings.encoder}'; if you trust that module, give --trust-modules (in Python: encoder={name} or "
                "trust_modules=True)"
            )
        if settings.encoder_kwargs and "encoder_kwargs" not in self.given:
            raise UserError(
                f"{self.source} is not signed by you and would call your encoder with its own arguments "
                f"({', '.join(settings.encoder_kwargs)}); use load(..., encoder_kwargs=...) or trust_modules=True"
            )

    def refuse_schedules(self, config: TrainConfig) -> None:
        """Raise if a schedule is a function of an untrusted checkpoint."""
        self._refuse(schedule_functions(config))

    def refuse_wrappers(self, config: TrainConfig) -> None:
        """Raise if a wrapper comes from an untrusted checkpoint."""
        self._refuse(foreign_wrappers(config))

    def refuse_arguments(self, config: TrainConfig) -> None:
        """Raise if environment or wrappers of an untrusted checkpoint have arguments that may do harm."""
        self._refuse_unusual(unusual_arguments(config))

    def refuse_all(self, config: TrainConfig) -> None:
        """Raise if training with this config would run any code without permission, or has harmful settings."""
        self.refuse_env(config.env_id)
        self.refuse_encoder(config)
        self.refuse_schedules(config)
        self.refuse_wrappers(config)
        self.refuse_arguments(config)
        self.refuse_counts(config)
        self.refuse_dataset(config)
        self.refuse_players(config)

    def refuse_players(self, config: TrainConfig) -> None:
        """Raise if a function that plays in evaluations would be imported without permission."""
        self._refuse(foreign_players(config))

    def refuse_dataset(self, config: TrainConfig) -> None:
        """Raise if an untrusted checkpoint chooses the files that are read as a dataset."""
        if config.dataset is not None and not self.granted and "dataset" not in self.given:
            raise UserError(
                f"{self.source} is not signed by you and would read the dataset '{config.dataset}'; if you trust it, "
                "give --trust-modules, or with --start-from a --dataset of your own (in Python: trust_modules=True or "
                "dataset=...)"
            )

    def refuse_counts(self, config: TrainConfig) -> None:
        """Raise if an untrusted checkpoint asks for too many environments, episodes or threads."""
        self._refuse_unusual(large_counts(config))

    def without_outputs(self, config: TrainConfig) -> TrainConfig:
        """Return the config without the tracker, cluster and output folder that an untrusted checkpoint chose."""
        if self.granted:
            return config
        defaults = {
            item.name: item.default for item in fields(TrainConfig) if item.name in OUTPUTS - self.given
        }
        return without_foreign_cluster(config.with_overrides(**defaults), self.given)

    def _refuse_unusual(self, found: Iterable[tuple[str, str]]) -> None:
        for setting, problem in found:
            if not self.granted and setting not in self.given:
                raise UserError(
                    f"{self.source} is not signed by you, and {problem}; if you trust it, give --trust-modules (in "
                    f"Python: trust_modules=True, or load(..., {setting}=...))"
                )

    def vouches_for(self, config: TrainConfig) -> bool:
        """Return whether all code that the config would call, and its arguments, are trusted."""
        called = [
            *schedule_functions(config),
            *foreign_wrappers(config),
            *foreign_players(config),
            *unusual_arguments(config),
        ]
        return self.granted or all(setting in self.given for setting, _ in called)

    def _refuse(self, called: Iterable[tuple[str, str]]) -> None:
        for setting, name in called:
            if not self.granted and setting not in self.given:
                raise UserError(
                    f"{self.source} is not signed by you and would import the module '{name.partition(':')[0]}' for "
                    f"its {setting} '{name}'; if you trust that module, give --trust-modules (in Python: "
                    f"trust_modules=True, or load(..., {setting}=...))"
                )


def refuse_missing_factory(source: object, env_id: str, *, needed: bool) -> None:
    """Raise if the environment was built by a function, which the user must give again."""
    if needed:
        raise UserError(
            f"{source} was trained in an environment '{env_id}' that a function built; give the function: load(path, "
            "env=...) in Python, or --env-factory module:function with eval and resume"
        )


def _signature(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def _key_path() -> Path | None:
    """Return the path of the key; a relative XDG_STATE_HOME is ignored, because it depends on the working folder."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        folder = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    except RuntimeError:  # no home directory
        return None
    return folder / "rl_training" / "key"


def _read_key() -> bytes | None:
    """Return the key if it is complete and only this user can read it."""
    path = _key_path()
    if path is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
        key = os.read(descriptor, KEY_BYTES + 1) if stat.S_ISREG(status.st_mode) and private else b""
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return key if len(key) == KEY_BYTES else None


def _make_key() -> bytes | None:
    """Create the key atomically; return it, or the key that another process created first."""
    path = _key_path()
    if path is None:
        return None
    temporary = path.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, secrets.token_bytes(KEY_BYTES))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)  # a rename would replace another process's key
    except OSError:
        return None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return _read_key()


def without_foreign_cluster(config: TrainConfig, given: Collection[str] = ()) -> TrainConfig:
    """Return the config without a Ray cluster that its file names: the cluster would receive code and run its own.

    `given` are the settings that the user named.
    """
    if config.engine != "ray":
        return config
    if "engine" in given or "ray_address" in given:
        return config.with_overrides(**{name: usual for name, usual in OF_RAY.items() if name not in given})
    return config.with_overrides(engine="process")
