"""Configs, manifests, launches and logs that would take all memory or all day; each must end within the bounds."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile_cases.case import Arena, Case

GB = 10**9
GOOD = "algo: ppo\nenv_id: CartPole-v1\n"
MANIFEST = "presets: [ppo/cartpole]\nseeds: 1\n"
TRAIN = ("train", "--config", "c.yaml", "--output-dir", "runs")
FLAGS = ("train", "ppo", "--env-id", "CartPole-v1", "--output-dir", "runs")
LAUNCH = ("benchmark", "m.yaml", "--output-dir", "launch", "--jobs", "1")
SUM = ("export-results", "runs", "--csv", "-")


def sparse(name: str, size: int = 6 * GB) -> Callable[[Arena], None]:
    """Return a preparation: a file of zeros that takes no room."""
    return lambda arena: os.truncate(arena.put(name, ""), size)


def config(name: str, content: str, *words: str) -> Case:
    """Return a case with a config."""
    return Case(name, TRAIN, ("c.yaml", *words), prepare=lambda arena: arena.put("c.yaml", content))


def manifest(name: str, content: str, *words: str) -> Case:
    """Return a case with a manifest of a benchmark."""
    return Case(name, LAUNCH, ("m.yaml", *words), prepare=lambda arena: arena.put("m.yaml", content))


def baseline(name: str, prepare: Callable[[Arena], object], *words: str) -> Case:
    """Return a case with the records of an earlier benchmark."""

    def both(arena: Arena) -> None:
        arena.put("m.yaml", MANIFEST)
        prepare(arena)

    return Case(name, (*LAUNCH, "--baseline", "b.json"), ("b.json", *words), prepare=both)


def listed(name: str, arguments: tuple[str, ...], prepare: Callable[[Path], object], **more: Any) -> Case:
    """Return a case with a run whose logs are lists without end; what can be read is shown."""

    def harm(arena: Arena) -> None:
        run = arena.here / "runs" / "r"
        run.mkdir(parents=True)
        metadata = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "status": "finished"}
        (run / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")
        prepare(run)

    return Case(name, arguments, prepare=harm, **{"code": 0} | more)


def empty_folders(arena: Arena) -> None:
    """Make more folders than are searched."""
    for number in range(20_100):
        (arena.here / "runs" / str(number)).mkdir(parents=True)


EVALUATION = b'{"timesteps":1,"mean_reward":1,"returns":[1]}\n'
SHOW, LIST = ("runs", "show", "runs/r"), ("runs", "list", "runs")

CASES = [
    config("a config of 500,000 numbers", GOOD + f"x: [{'1,' * 500_000}]", "256 KiB"),
    config("a config of 100,000 numbers", GOOD + f"x: [{'1,' * 100_000}]", "more than 10,000 values"),
    config("a config of 9,000 numbers", GOOD + f"x: [{'1,' * 9_000}]", "unknown key 'x'"),
    config("a config of 20,000 unknown keys", GOOD + "".join(f"k{k}: 1\n" for k in range(20_000)), "10,000 values"),
    config("a config of 4,000 unknown keys", GOOD + "".join(f"key{k}: 1\n" for k in range(4_000)), "more unknown keys"),
    config("4,000 unknown settings of the algorithm",
           GOOD + "algorithm:\n" + "".join(f"  key{k}: 1\n" for k in range(4_000)), "more unknown settings"),
    config("a number of 4,000 digits in a config", GOOD + f"seed: {'9' * 4_000}\n", "400 digits"),
    config("a hexadecimal number of 100,000 digits", GOOD + f"seed: 0x{'f' * 100_000}\n", "400 digits"),
    config("a number of 50,000 parts in base 60", GOOD + f"seed: {'1:' * 50_000}1\n", "400 digits"),
    config("a rate of 350 digits", GOOD + f"algorithm: {{learning_rate: {'9' * 350}}}\n", "learning_rate"),
    config("a key of 100,000 letters", GOOD + f"{'k' * 100_000}: 1\n", "not valid YAML"),
    config("a key of 100,000 letters, twice", GOOD + f"{'k' * 100_000}: 1\n" * 2, "not valid YAML"),
    config("a text of 200,000 letters", GOOD + f"seed: {'x' * 200_000}\n", "use a whole number"),
    config("100,000 comments", GOOD + "#\n" * 100_000 + "x: 1\n", "unknown key 'x'"),
    config("10,000 tags", GOOD + "x: " + "!!str " * 10_000 + "1\n", "not valid YAML"),
    config("braces without end", GOOD + "env_kwargs: " + "{a: " * 20_000, "not valid YAML"),
    config("10,000 points of a schedule",
           GOOD + f"algorithm: {{learning_rate_schedule: [{'[0, 1],' * 3_000}]}}\n", "at most 1,000"),
    config("6,000 arguments of the environment", GOOD + f"env_kwargs: {{a: [{'1,' * 6_000}]}}\n", "5,000 values"),
    config("a wrapper whose text has aliases", GOOD + "env_wrappers: ['{a:w: {a: &a [1], b: [*a, *a]}}']\n"),
    Case("a config of 6 GB", TRAIN, ("c.yaml", "256 KiB"), prepare=sparse("c.yaml")),
    Case("a device as config", ("train", "--config", "/dev/zero"), ("/dev/zero",)),
    Case("a config that is a link to itself", TRAIN, ("c.yaml",),
         prepare=lambda arena: (arena.here / "c.yaml").symlink_to("c.yaml")),
    Case("a flag of 100,000 numbers", (*FLAGS, "--env-kwargs", f"{{a: [{'1,' * 50_000}]}}"), ("--env-kwargs",)),
    Case("a flag with aliases", (*FLAGS, "--env-wrappers", "{a:w: {a: &a [1], b: [*a]}}"), ("env",)),
    manifest("a manifest of 9,000 presets", f"presets: [{'ppo/cartpole,' * 9_000}]\n", "at most 200"),
    manifest("a manifest of 190 unknown presets", "presets: [" + ", ".join(f"p{k}" for k in range(190)) + "]\n",
             "presets[0]"),
    manifest("a manifest of 10^9 seeds", "presets: [ppo/cartpole]\nseeds: 1000000000\n", "seeds"),
    manifest("a manifest of seeds 1 to 10^12", "presets: [ppo/cartpole]\nseeds: 1-1000000000000\n", "seeds"),
    manifest("a manifest of 20,000 overrides",
             MANIFEST + "overrides:\n" + "".join(f"  k{k}: 1\n" for k in range(20_000)), "10,000 values"),
    manifest("a manifest of 4,000 references",
             MANIFEST + "references:\n" + "".join(f"  t{k}: 1\n" for k in range(4_000)), "references"),
    manifest("a manifest nested without end", "presets: " + "[" * 5_000, "not valid YAML"),
    Case("a manifest of 6 GB", LAUNCH, ("m.yaml", "256 KiB"), prepare=sparse("m.yaml")),
    Case("a pipe as manifest", LAUNCH, ("m.yaml",), prepare=lambda arena: os.mkfifo(arena.here / "m.yaml")),
    baseline("records of 6 GB", sparse("b.json"), "65,536 KiB"),
    baseline("records of 15 MiB of lists", lambda a: a.put("b.json", b"[" + b"[]," * (5 << 20) + b"0]")),
    baseline("records nested without end", lambda a: a.put("b.json", b"[" * 10**6)),
    baseline("a pipe as records", lambda a: os.mkfifo(a.here / "b.json")),
    Case("a launch whose folder is a device", (*LAUNCH[:3], "/dev/zero"), ("/dev/zero",),
         prepare=lambda arena: arena.put("m.yaml", MANIFEST)),
    Case("20,100 folders of runs", LIST, ("20,000 folders",), prepare=empty_folders),
    *(listed(f"{what}, {arguments[0]} {arguments[1]}", arguments, prepare)
      for arguments in (LIST, SHOW, SUM)
      for what, prepare in {
          "evaluations of 6 GB": lambda run: os.truncate(_touched(run / "evaluations.jsonl"), 6 * GB),
          "300,000 evaluations": lambda run: (run / "evaluations.jsonl").write_bytes(EVALUATION * 300_000),
          "a line of 60 MB": lambda run: (run / "evaluations.jsonl").write_bytes(b"[" * 60_000_000 + b"\n"),
          "metrics of 6 GB": lambda run: os.truncate(_touched(run / "metrics.jsonl"), 6 * GB),
          "metrics that are a pipe": lambda run: os.mkfifo(run / "metrics.jsonl"),
          "a config that is a pipe": lambda run: os.mkfifo(run / "config.yaml"),
          "a config of 500,000 numbers": lambda run: (run / "config.yaml").write_text(f"x: [{'1,' * 500_000}]"),
      }.items()),
    *(listed(name, arguments, lambda run: os.truncate(_touched(run / "metadata.json"), 6 * GB), code=code)
      for name, arguments, code in (("metadata of 6 GB, list", LIST, 0), ("metadata of 6 GB, show", SHOW, 2))),
]  # fmt: skip


def _touched(path: Path) -> Path:
    path.touch()
    return path
