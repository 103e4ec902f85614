"""Whose run is this? A run may name a module to import, and a stranger's is not imported unasked.

What this user writes is signed with a key that lies in their state folder and nowhere else. A signature says that the
text is as it was written here; it hides nothing.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from rl_training.config import TrainConfig
from rl_training.config.env_wrappers import wrapper_calls
from rl_training.config.schedules import function_name
from rl_training.core.errors import UserError

KEY_BYTES = 32
OWN_MODULES = ("rl_training.envs.tasks", "rl_training.envs.tasks.catch", "rl_training.envs.tasks.grids")
"""Of this package, with environments: importing them does nothing else."""
HARMLESS_WRAPPERS = (
    "AddRenderObservation", "AddWhiteNoise", "AtariPreprocessing", "ClipAction", "ClipReward", "DelayObservation",
    "DiscretizeAction", "DiscretizeObservation", "DtypeObservation", "FilterObservation", "FlattenObservation",
    "FrameStackObservation", "GrayscaleObservation", "MaxAndSkipObservation", "NormalizeObservation",
    "NormalizeReward", "ObstructView", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics",
    "RepeatAction", "RescaleAction", "RescaleObservation", "ReshapeObservation", "ResizeObservation", "StickyAction",
    "TimeAwareObservation", "TimeLimit",
)  # fmt: skip
"""Of `gymnasium.wrappers`: these compute and do nothing else, whatever their arguments; RecordVideo writes files."""


def sign_text(text: str) -> str | None:
    """Return this user's signature of `text`; nothing if there is no key and none can be made."""
    key = _read_key() or _make_key()
    return _signature(key, text) if key is not None else None


def is_signed(text: str, signature: object) -> bool:
    """Return whether `signature` is this user's signature of exactly this text."""
    if not isinstance(signature, str) or not signature.isascii():
        return False
    key = _read_key()
    return key is not None and hmac.compare_digest(_signature(key, text), signature)


def module_is_imported(name: str) -> bool:
    """Return whether `module:Name`, or a name without a module, asks for nothing that is not imported, or ours."""
    module = name.rpartition(":")[0]
    return not module or module in sys.modules or module in OWN_MODULES


def refuse_foreign_module(source: object, env_id: str, *, signed: bool, allowed: bool) -> None:
    """Refuse to import the module that a run of somebody else names, unless the user has allowed it."""
    if signed or allowed or module_is_imported(env_id):
        return
    raise UserError(
        f"{source} is not signed by you and would import the module '{env_id.rpartition(':')[0]}'; if you trust "
        f"that module, give --env-id {env_id} or --trust-modules (in Python: env='{env_id}' or trust_modules=True)"
    )


def refuse_foreign_encoder(
    source: object, name: str, arguments: Iterable[str], *, signed: bool, trusted: bool, given: bool
) -> None:
    """Refuse to call the encoder that the run of somebody else names, or a `given` one with `arguments` of theirs.

    That its module is imported already proves nothing: `subprocess` is, and the arguments are somebody else's, too.
    """
    if signed or trusted or ":" not in name:
        return
    if not given:
        raise UserError(
            f"{source} is not signed by you and would import the module '{name.partition(':')[0]}' for its encoder "
            f"'{name}'; if you trust that module, give --trust-modules (in Python: encoder={name.partition(':')[2]} or "
            "trust_modules=True)"
        )
    listed = ", ".join(arguments)
    if listed:
        raise UserError(
            f"{source} is not signed by you and would call your encoder with arguments of its own ({listed}); give "
            "load(..., encoder_kwargs=...) or trust_modules=True"
        )


def imports_nothing(config: TrainConfig) -> bool:
    """Return whether all modules that a config names are imported already: whoever wrote it has run them."""
    called = schedule_functions(config) + foreign_wrappers(config)
    names = [config.env_id, config.algorithm.encoder, *(name for _, name in called)]
    return all(module_is_imported(name) for name in names)


def schedule_functions(config: TrainConfig) -> list[tuple[str, str]]:
    """Return (setting, `module:function`) for each schedule that is one."""
    settings = [item.name for item in fields(config.algorithm) if item.name.endswith("_schedule")]
    found = [(name, function_name(getattr(config.algorithm, name))) for name in settings]
    return [(name, function) for name, function in found if function is not None]


def foreign_wrappers(config: TrainConfig) -> list[tuple[str, str]]:
    """Return (setting, `module:Wrapper`) for each wrapper that is not one of Gymnasium's own, which only compute."""
    names = [name for name, _ in wrapper_calls(config.env_wrappers)]
    return [("env_wrappers", name) for name in names if not _is_harmless(name)]


def _is_harmless(wrapper: str) -> bool:
    module, _, name = wrapper.partition(":")
    return module == "gymnasium.wrappers" and name in HARMLESS_WRAPPERS


@dataclass(frozen=True)
class Permission:
    """Whether what a checkpoint names may be called: if it is this user's or trusted, or if the caller named it.

    That a module is imported already proves nothing here: `os` is.
    """

    source: object = "this agent"
    granted: bool = True
    """Signed by this user, or trusted."""
    given: frozenset[str] = frozenset()
    """Settings that the caller gave."""

    def refuse_schedules(self, config: TrainConfig) -> None:
        """Refuse to learn by a function that somebody else's run names."""
        self._refuse(schedule_functions(config))

    def refuse_wrappers(self, config: TrainConfig) -> None:
        """Refuse to build an environment in wrappers that somebody else's run names."""
        self._refuse(foreign_wrappers(config))

    def vouches_for(self, config: TrainConfig) -> bool:
        """Return whether nothing that the config would call is somebody else's choice."""
        called = schedule_functions(config) + foreign_wrappers(config)
        return self.granted or all(setting in self.given for setting, _ in called)

    def _refuse(self, called: Iterable[tuple[str, str]]) -> None:
        for setting, name in called:
            if not self.granted and setting not in self.given:
                raise UserError(
                    f"{self.source} is not signed by you and would import the module '{name.partition(':')[0]}' for "
                    f"its {setting} '{name}'; if you trust that module, give --trust-modules (in Python: "
                    f"trust_modules=True, or load(..., {setting}=...) of your own)"
                )


OWN = Permission()


def refuse_missing_factory(source: object, env_id: str, *, needed: bool) -> None:
    """Ask for the function that built the environment of a run: the run knows no more of it than a name."""
    if needed:
        raise UserError(
            f"{source} was trained in an environment that a function built, and '{env_id}' is only its name; give the "
            "function: load(path, env=...) in Python, eval --env-factory module:function, "
            "resume --env-factory module:function"
        )


def refuse_other_env(source: object, recorded: str, given: str | None) -> None:
    """Refuse to go on with a run in another environment than its own."""
    if given is not None and given != recorded:
        raise UserError(f"{source} is a run on '{recorded}', not on '{given}'; give its own name, or none")


def _signature(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def _key_path() -> Path | None:
    """Return where the key is, or would be; a relative folder would be the choice of the working folder."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        folder = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    except RuntimeError:  # nobody's home
        return None
    return folder / "rl_training" / "key"


def _read_key() -> bytes | None:
    """Return the key if it is whole, and this user's alone."""
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
    """Make the key, whole under its name or not at all; return it, or the one that another process made first."""
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
            os.link(temporary, path)  # a rename would replace the other's
    except OSError:
        return None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return _read_key()
