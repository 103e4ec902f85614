"""Environments that go wrong before a run (bad input) or in the middle of one (a fault, with something to lose)."""

from typing import Any

from hostile_cases.case import Case, Kept, train


def step(name: str, env: str, *words: str, flags: tuple[str, ...] = (), **more: Any) -> Case:
    """Return a case whose environment goes wrong in the middle of a run."""
    said = (f"{env}-v0", *words, "last good checkpoint")
    settings: dict[str, Any] = {"code": 1, "kept": Kept.RESUMES} | more
    return train(name, "--env-id", f"strange_envs:strange/{env}-v0", *flags, words=said, **settings)


def refused(name: str, env: str, *words: str, flags: tuple[str, ...] = (), **more: Any) -> Case:
    """Return a case whose environment is refused before the run."""
    return train(name, "--env-id", f"strange_envs:strange/{env}-v0", *flags, words=words, **more)


BEGUN: dict[str, Any] = {"code": 1, "kept": Kept.DELETED}
"""The run has just begun: there is nothing to keep yet."""
WORKERS = ("--env-backend", "async")

CASES = [
    step("an observation of another shape", "NarrowObservation", "(1,)", "(3,)"),
    step("an observation of another shape, from a worker", "NarrowObservation", "(1,)", "(3,)", flags=WORKERS),
    step("a text for an observation", "TextObservation", "observation"),
    step("nothing for an observation", "NoObservation", "observation"),
    step("complex numbers for an observation", "ComplexObservation", "complex"),
    train("an observation that is no number", "--env-id", "strange_envs:strange/NanObservation-v0",
          code=1, kept=Kept.RESUMES, words=("environment 0", "observation that is nan", "last good checkpoint")),
    step("four values from a step", "FourTuple", "a tuple of 4"),
    step("nothing from a step", "ReturnsNothing"),
    step("two rewards", "VectorReward", "reward"),
    step("a text for a reward", "TextReward", "reward"),
    step("nothing for a reward", "NoReward", "reward"),
    train("a reward that is no number", "--env-id", "strange_envs:strange/NanReward-v0", code=1, kept=Kept.RESUMES,
          words=("environment 0", "reward that is nan", "last good checkpoint")),
    step("a reward of 400 digits", "HugeReward", "reward"),
    step("a text for an end", "TextEnd", "terminated"),
    step("a list for info", "ListInfo", "info"),
    step("sys.exit in a step", "Exits", "SystemExit"),
    step("KeyboardInterrupt in a step", "Interrupts", code=130, kept=Kept.RESUMES),
    step("a recursion without end", "Recurses", "RecursionError"),
    step("no memory", "OutOfMemory", "MemoryError"),
    step("an exception that cannot be told", "Unprintable", "Unprintable"),
    step("an exception that cannot be told, from a worker", "Unprintable", "Unprintable", flags=WORKERS),
    step("an exception of two parts, from a worker", "TwoParts", "TwoParts", flags=WORKERS),
    step("an exception that is no Exception", "BaseError", "Base"),
    step("StopIteration", "StopIteration", "StopIteration"),
    step("several exceptions at once", "Group", "ExceptionGroup"),
    step("escape sequences in an exception", "Escapes", "ValueError"),
    train("a worker that ends", "--env-id", "strange_envs:strange/Dies-v0", *WORKERS, code=1, kept=Kept.RESUMES,
          words=("the worker of environment", "died (exit code 9)", "last good checkpoint")),
    train("a worker that crashes", "--env-id", "strange_envs:strange/Segfaults-v0", *WORKERS, code=1, kept=Kept.RESUMES,
          words=("the worker of environment", "died", "last good checkpoint")),
    train("a step without end", "--env-id", "strange_envs:strange/Hangs-v0", *WORKERS, "--env-timeout", "2", code=1,
          kept=Kept.RESUMES, words=("environment", "2 s", "last good checkpoint")),
    refused("an observation without a number", "EmptyBox", "observation space", "contains no numbers"),
    refused("texts as observations", "TextSpace", "observation space Text"),
    refused("graphs as observations", "GraphSpace", "observation space Graph"),
    refused("tuples as actions", "TupleAction", "action space Tuple"),
    refused("no spaces at all", "NoSpaces", "NoSpaces-v0", "has observation_space None"),
    refused("a number where a space is asked for", "NotASpace", "NotASpace-v0", "has action_space 4"),
    refused("actions without number", "ManyActions", "not enough memory"),
    Case("actions without bounds",
         ("train", "sac", "--env-id", "strange_envs:strange/InfiniteAction-v0", "--output-dir", "r"),
         ("sac needs actions with finite bounds", "inf")),
    refused("an environment that cannot be built", "RaisesWhenBuilt", "RaisesWhenBuilt-v0", "rom.bin"),
    refused("an environment that needs a missing package", "NeedsPackage", "NeedsPackage-v0", "no_such_simulator"),
    refused("an environment that cannot be reset", "RaisesInReset", "RaisesInReset-v0", "no level to load", **BEGUN),
    refused("a reset without info", "ResetWithoutInfo", "ResetWithoutInfo-v0", "(observation, info)", **BEGUN),
    refused("a reset without a seed", "ResetWithoutSeed", "ResetWithoutSeed-v0", "has a reset without seed", **BEGUN),
    train("an environment that fails when all is over", "--env-id", "strange_envs:strange/RaisesInClose-v0",
          words=("RaisesInClose-v0", "when it was closed: the window is gone"), code=0, kept=Kept.RESUMES),
]  # fmt: skip
