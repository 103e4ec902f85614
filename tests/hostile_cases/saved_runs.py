"""Runs, checkpoints and agents: damaged, foreign, unfinished, busy, or something else altogether."""

import fcntl
import json
import os
import zipfile
from pathlib import Path
from typing import Any

from hostile_cases.case import Arena, Case, Kept
from rl_training.experiment.checkpoints.format import manifest_hash


def given(name: str, arguments: tuple[str, ...], *words: str, **more: Any) -> Case:
    """Return a case that misuses a run, which must stay as it is."""
    settings: dict[str, Any] = {"kept": Kept.UNCHANGED, "needs_run": True} | more
    return Case(name, arguments, words, **settings)


def steps(arena: Arena) -> list[Path]:
    """Return the checkpoints of the run."""
    return sorted((arena.run / "checkpoints").glob("step_*"))


def cut(name: str) -> Any:
    """Return a harm: a file of every checkpoint loses its end."""
    return lambda arena: [os.truncate(step / name, 20) for step in steps(arena)]


def flipped(arena: Arena) -> None:
    """Flip a bit in the weights of every checkpoint."""
    for step in steps(arena):
        blob = bytearray((step / "model.safetensors").read_bytes())
        blob[-5] ^= 1
        (step / "model.safetensors").write_bytes(blob)


def from_the_future(arena: Arena) -> None:
    """Let all checkpoints say that they are of a later format."""
    for step in steps(arena):
        manifest = json.loads((step / "manifest.json").read_text(encoding="utf-8"))
        manifest |= {"format_version": 99}
        manifest["sha256"] = manifest_hash(manifest)
        (step / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def archive(arena: Arena) -> None:
    """Put a model of another library."""
    with zipfile.ZipFile(arena.here / "model.zip", "w") as file:
        file.writestr("data", "{}")


HELD: list[Any] = []


def busy(arena: Arena) -> None:
    """Hold the run's lock, as a process does that trains it."""
    file = (arena.run / ".lock").open("w")
    file.write(f"{os.getpid()}\n")
    file.flush()
    fcntl.flock(file, fcntl.LOCK_EX)
    HELD.append(file)


EVAL = ("eval", "{run}", "--num-episodes", "1")
RESUME = ("resume", "{run}", "--quiet")

CASES = [
    Case("eval without a run", ("eval",), ("rl-training eval",)),
    Case("a run that is nowhere", ("eval", "nowhere"), ("nowhere does not exist",)),
    Case("a run without a name", ("eval", ""), ("run",)),
    Case("a run with a line break in its name", ("eval", "a\nb"), ("does not exist",)),
    Case("a run whose name is too long", ("eval", "x" * 5000), ("File name too long",)),
    Case("a text file as a run", ("eval", "notes.txt"), ("notes.txt",), prepare=lambda a: a.put("notes.txt", "hello")),
    Case("a text file to go on with", ("resume", "notes.txt"), ("notes.txt",),
         prepare=lambda a: a.put("notes.txt", "hello")),
    Case("a folder of something else", ("eval", "."), ("holds no checkpoint",), prepare=lambda a: a.put("a/b", "x")),
    Case("a folder of something else, to go on with", ("resume", "."), ("is not part of a run",)),
    Case("a model of another library", ("eval", "model.zip"), ("model.zip",), prepare=archive),
    Case("a model of another library, to go on with", ("resume", "model.zip"), ("model.zip",), prepare=archive),
    Case("a file of weights", ("eval", "w.safetensors"), ("w.safetensors",),
         prepare=lambda a: a.put("w.safetensors", b"\0" * 64)),
    Case("a run that has no checkpoint yet", ("eval", "runs/x"), ("no checkpoint",),
         prepare=lambda a: (a.here / "runs/x/checkpoints").mkdir(parents=True)),
    given("weights cut short", EVAL, "model.safetensors", "damaged", prepare=cut("model.safetensors")),
    given("a manifest cut short", RESUME, "manifest.json", "damaged", prepare=cut("manifest.json")),
    given("an empty manifest", EVAL, "manifest.json", "damaged",
          prepare=lambda a: [(step / "manifest.json").write_text("") for step in steps(a)]),
    given("a flipped bit", RESUME, "model.safetensors is damaged", prepare=flipped),
    given("a checkpoint of a later version", EVAL, "format 99", prepare=from_the_future),
    given("a run that is being trained", RESUME, "is in use by process", prepare=busy),
    given("a budget that is used up already", (*RESUME, "--total-timesteps", "1"), "--total-timesteps"),
    given("another environment than the run's", (*RESUME, "--env-id", "CartPole-v1"), "CartPole-v1"),
    given("an environment of other spaces", (*EVAL, "--env-id", "Pendulum-v1"), "Pendulum-v1"),
    given("an environment misspelt, to play in", (*EVAL, "--env-id", "CartPol-v1"), "CartPol"),
    given("no episodes", ("eval", "{run}", "--num-episodes", "0"), "num_episodes is 0"),
    given("half an episode", ("eval", "{run}", "--num-episodes", "0.5"), "num-episodes"),
    given("a flag that eval does not have", (*EVAL, "--episodes", "3"), "--episodes"),
    given("a video of what cannot be seen",
          (*EVAL, "--env-id", "strange_envs:strange/NarrowObservation-v0", "--record", "v"),
          "NarrowObservation-v0"),
    given("a video into a file", (*EVAL, "--record", "/dev/null"), "/dev/null"),
    given("a checkpoint that was pruned", ("eval", "{run}/checkpoints/step_7"), "step_7 does not exist"),
    given("a function that is missing", (*EVAL, "--env-factory", "strange_envs:build"), "build"),
    given("a function without its module", (*EVAL, "--env-factory", "build"), "build", "module:function"),
    given("a function that wants arguments", (*EVAL, "--env-factory", "strange_envs:needs_arguments"), "level"),
    given("a function that returns nothing", (*EVAL, "--env-factory", "strange_envs:nothing"), "NoneType"),
    given("an environment in place of a function", (*EVAL, "--env-factory", "strange_envs:one"), "is a Plain"),
    given("a function that builds several agents", (*EVAL, "--env-factory", "strange_envs:several"), "several agents"),
    given("a function that builds a vector", (*EVAL, "--env-factory", "strange_envs:vector"), "a single environment"),
    given("a run whose folder is a link to nothing", ("eval", "link"), "link",
          prepare=lambda a: (a.here / "link").symlink_to("nothing")),
    given("a run whose folder is a link to itself", ("eval", "link"), "link",
          prepare=lambda a: (a.here / "link").symlink_to("link")),
]  # fmt: skip
