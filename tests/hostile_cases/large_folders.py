"""Run folders made to take memory or time: large, sparse, deep and endless files, and settings without bounds.

Each is tried with `eval`, `resume`, `load` and `runs list`, and must end within the bounds of `run_folders`.
"""

import json
import os
import shutil
import struct
from collections.abc import Callable
from typing import Any

from hostile_cases.run_folders import EVENTS, STEP, Arena, Case, pipe
from rl_training.experiment.checkpoints.format import manifest_hash

GB = 10**9
Change = Callable[[dict[str, Any]], Any]
Harm = Callable[[Arena], Any]
WRAPPERS = "gymnasium.wrappers:"


def sparse(name: str, size: int = 6 * GB, begin: bytes = b"") -> Harm:
    """Return a harm: a file of `size` bytes that takes no room on the disk."""

    def harm(arena: Arena) -> None:
        os.truncate(arena.put(name, begin), size)

    return harm


def settings(**changes: Any) -> Harm:
    """Return a harm: other settings of the run."""
    return lambda arena: arena.forge(lambda manifest: manifest["config"].update(changes))


def algorithm(**changes: Any) -> Harm:
    """Return a harm: other settings of the algorithm."""
    return lambda arena: arena.forge(lambda manifest: manifest["config"]["algorithm"].update(changes))


def fact(*path: str, value: Any) -> Harm:
    """Return a harm: another value in the manifest."""

    def change(manifest: dict[str, Any]) -> None:
        for key in path[:-1]:
            manifest = manifest[key]
        manifest[path[-1]] = value

    return lambda arena: arena.forge(change)


def tensor(size: int) -> tuple[bytes, dict[str, Any]]:
    """Return the beginning of a file with one tensor of `size` bytes, and its entry in a manifest."""
    header = json.dumps({"x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    begin = struct.pack("<Q", len(header)) + header
    return begin, {"size": len(begin) + size, "sha256": "0" * 64}


def large_tensors(name: str, size: int = 6 * GB) -> Harm:
    """Return a harm: a sparse file of tensors, which the manifest describes."""
    begin, entry = tensor(size)

    def harm(arena: Arena) -> None:
        sparse(f"{STEP}/{name}", entry["size"], begin)(arena)
        arena.forge(lambda manifest: manifest["files"].update({name: entry}))

    return harm


def large_segment(rows: int, size: int) -> Harm:
    """Return a harm: replay data of many rows in a sparse file."""
    begin, entry = tensor(size)

    def harm(arena: Arena) -> None:
        name = f"segment_0_{rows}.safetensors"
        sparse(f"checkpoints/replay/{name}", entry["size"], begin)(arena)
        listed = {
            "total_rows": rows,
            "kept_rows": 50,
            "segments": [entry | {"name": name, "start": 0, "stop": rows}],
        }
        arena.forge(lambda manifest: manifest["facts"]["replay"].update(transitions=listed))

    return harm


def log(name: str, size: int, begin: bytes = b"") -> Harm:
    """Return a harm: a sparse log, of which the checkpoint says that all of it belongs to the run."""

    def harm(arena: Arena) -> None:
        sparse(name, size, begin)(arena)
        arena.forge(lambda manifest: manifest["facts"]["log_positions"].update({name: size}))

    return harm


def rows(name: str, row: bytes, count: int) -> Harm:
    """Return a harm: a log of many rows, all of which belong to the run."""

    def harm(arena: Arena) -> None:
        arena.put(name, row * count)
        arena.forge(lambda manifest: manifest["facts"]["log_positions"].update({name: len(row) * count}))

    return harm


def text(change: Callable[[str], str]) -> Harm:
    """Return a harm: another text of the manifest, whose hash fits what it means."""

    def harm(arena: Arena) -> None:
        path = arena.run / STEP / "manifest.json"
        manifest = json.loads(path.read_text(encoding="utf-8"))
        manifest.pop("signature", None)
        written = change(json.dumps(manifest | {"sha256": manifest_hash(manifest)}))
        path.write_text(written, encoding="utf-8")

    return harm


def without_checkpoints(then: Harm) -> Harm:
    """Return a harm to a run that was killed before its first checkpoint."""

    def harm(arena: Arena) -> None:
        shutil.rmtree(arena.run / "checkpoints")
        for name in ("metrics.jsonl", "evaluations.jsonl", "metrics.csv"):
            (arena.run / name).unlink(missing_ok=True)
        then(arena)

    return harm


def many_files(arena: Arena) -> None:
    """Put more files than any run has, all of them the same one."""
    folder = arena.run / "many"
    folder.mkdir()
    (folder / "0").touch()
    for number in range(1, 20_500):
        if number % 10_000 == 0:  # a file has a limited number of names
            (folder / str(number)).touch()
            continue
        os.link(folder / str(number - number % 10_000), folder / str(number))


def many_checkpoints(arena: Arena) -> None:
    """Put 2,000 empty checkpoints."""
    for number in range(1_000, 3_000):
        (arena.run / "checkpoints" / f"step_{number}").mkdir()


def twice(written: str) -> str:
    """Write a key of the manifest twice; the second one counts."""
    return '{"format_version": 99, ' + written[1:]


def nested(depth: int) -> Any:
    """Return lists in lists."""
    data: Any = 1
    for _ in range(depth):
        data = [data]
    return data


REFUSED: dict[str, Harm] = {
    "weights of 6 GB, as the manifest says": large_tensors("model.safetensors"),
    "weights of 6 GB, and the manifest says less": sparse(f"{STEP}/model.safetensors"),
    "an optimizer of 6 GB": large_tensors("optimizer.safetensors"),
    "another file of 6 GB": large_tensors("other.safetensors"),
    "weights of 300 MB of zeros": large_tensors("model.safetensors", 300 * 10**6),
    "ten thousand files of weights": fact(
        "files", value={f"f{k}.safetensors": {"size": 8, "sha256": "0" * 64} for k in range(10_000)}
    ),
    "a header of 100,000 tensors": lambda a: a.plant("model.safetensors", _headers(100_000)),
    "a header of 4,000 empty tensors": lambda a: a.plant("model.safetensors", _headers(4_000)),
    "a header nested without end": lambda a: a.plant(
        "model.safetensors", struct.pack("<Q", 10**6) + b"[" * 10**6
    ),
    "a header that describes more than there is": lambda a: a.plant("model.safetensors", tensor(6 * GB)[0] + b"x"),
    "a manifest of 17 MiB of zeros": sparse(f"{STEP}/manifest.json", 17 << 20),
    "a manifest of 17 MiB of lists": lambda a: a.put(
        f"{STEP}/manifest.json", b'{"a": [' + b"[]," * (17 << 20) + b"0]}"
    ),
    "a manifest of 15 MiB of lists": lambda a: a.put(
        f"{STEP}/manifest.json", b'{"a": [' + b"[]," * (5 << 20) + b"0]}"
    ),
    "90,000 unknown settings of the run": lambda a: a.forge(
        lambda m: m["config"].update({f"unknown_setting_{k}": k for k in range(90_000)})
    ),
    "90,000 unknown settings of the algorithm": lambda a: a.forge(
        lambda m: m["config"]["algorithm"].update({f"unknown_setting_{k}": k for k in range(90_000)})
    ),
    "a number of 5,000 digits": text(lambda t: t.replace('"timesteps": 64', f'"timesteps": {"9" * 5_000}')),
    "a number of 4,000 digits": text(lambda t: t.replace('"timesteps": 64', f'"timesteps": {"9" * 4_000}')),
    "10^40 steps": fact("progress", "timesteps", value=10**40),
    "10^40 updates": fact("progress", "updates", value=10**40),
    "10^40 bytes of weights": fact("files", "model.safetensors", "size", value=10**40),
    "10^40 bytes of a log": fact("facts", "log_positions", value={"metrics.jsonl": 10**40}),
    "steps that are no number": fact("progress", "timesteps", value=float("nan")),
    "infinitely many steps": fact("progress", "timesteps", value=float("inf")),
    "a seed that is no number": settings(seed=float("nan")),
    "a learning rate without end": algorithm(learning_rate=10**400),
    "an environment with half a letter": settings(env_id="\ud800-v0"),
    "an environment with NUL": settings(env_id="Cart\0Pole-v1"),
    "an environment whose name has a million letters": settings(env_id="x" * 10**6 + "-v0"),
    "a module whose name has a million letters": settings(env_id="x" * 10**6 + ":y-v0"),
    "escape sequences in the names of settings": lambda a: a.forge(
        lambda m: m["config"].update({"\x1b[2J\x07": "\x1b]0;owned\x07"})
    ),
    "a space of 5,000 entries": fact(
        "facts", "spaces", "observation_space",
        value={"type": "Dict", "spaces": [[f"k{k}", {"type": "Discrete", "shape": [], "dtype": "int64", "n": 2,
                                                     "start": 0}] for k in range(5_000)]},
    ),
    "a space nested without end": fact("facts", "spaces", "observation_space", value=nested(500)),
    "100,000 widths": algorithm(hidden_sizes=[1] * 100_000),
    "100,000 points of a schedule": algorithm(learning_rate_schedule=[[0, 1]] * 100_000),
    "a pipe among the arguments": lambda a: (
        pipe("pipe")(a), settings(env_kwargs={"xml_file": str(a.run / "pipe")})(a)),
    "a device among the arguments": settings(env_kwargs={"xml_file": "/dev/zero"}),
    "a relative path among the arguments": settings(env_kwargs={"path": "../../outside/precious"}),
    "a module among the arguments": settings(env_kwargs={"game": "antigravity:X-v0"}),
    "a number of 10^9 among the arguments": settings(env_kwargs={"frame_skip": 10**9}),
    "a number of 400 digits among the arguments": settings(env_kwargs={"size": 10**400}),
    "100,000 arguments": settings(env_kwargs={f"a{k}": k for k in range(100_000)}),
    "arguments nested 300 times": settings(env_kwargs={"a": nested(300)}),
    "a text of a million letters among the arguments": settings(env_kwargs={"text": "x" * 10**6}),
    "a stack of 10^8 frames": settings(env_wrappers=[{f"{WRAPPERS}FrameStackObservation": {"stack_size": 10**8}}]),
    "stacks of stacks": settings(env_wrappers=[{f"{WRAPPERS}FrameStackObservation": {"stack_size": 900}}] * 4),
    "actions repeated 10^9 times": settings(env_wrappers=[{f"{WRAPPERS}RepeatAction": {"num_repeats": 10**9}}]),
    "frames skipped 10^9 times": settings(env_wrappers=[{f"{WRAPPERS}MaxAndSkipObservation": {"skip": 10**9}}]),
    "images of 10^10 pixels": settings(env_wrappers=[{f"{WRAPPERS}ResizeObservation": {"shape": [10**5, 10**5]}}]),
    "a delay of 10^9 steps": settings(env_wrappers=[{f"{WRAPPERS}DelayObservation": {"delay": 10**9}}]),
    "10^9 no-ops": settings(env_wrappers=[{f"{WRAPPERS}AtariPreprocessing": {"noop_max": 10**9}}]),
    "10^9 bins": settings(env_wrappers=[{f"{WRAPPERS}DiscretizeObservation": {"bins": 10**9}}]),
    "1,000 wrappers": settings(env_wrappers=[f"{WRAPPERS}OrderEnforcing"] * 1_000),
    "a wrapper whose text grows": settings(env_wrappers=[
        "{a:w: {a: &a [x, x], b: &b [*a, *a], c: &c [*b, *b], d: [*c, *c]}}"]),
    "a harmless wrapper of another module": lambda a: (
        a.put("evil.py", a.payload), settings(env_wrappers=["evil:TimeLimit"])(a)),
    "an encoder of another module": lambda a: (a.put("evil.py", a.payload), algorithm(encoder="evil:Encoder")(a)),
    "a checkpoint that is a link to itself": lambda a: a.link(STEP, a.run / STEP),
    "weights that are a link to a device": lambda a: a.link(f"{STEP}/model.safetensors", a.run / "/dev/zero"),
    "a run killed at once, with a config of 1 MiB": without_checkpoints(
        lambda a: a.put("config.yaml", "algo: ppo\nenv_id: CartPole-v1\nx: [" + "1," * 500_000 + "]\n")),
    "a run killed at once, with 20,000 unknown settings": without_checkpoints(
        lambda a: a.put("config.yaml", "".join(f"k{k}: 1\n" for k in range(20_000)))),
    "a run killed at once, with an origin of 6 GB": without_checkpoints(sparse(".origin.json")),
}  # fmt: skip
"""Harms that `eval`, `resume` and `load` refuse."""

NOT_RESUMED: dict[str, Harm] = {
    "65,536 environments": settings(num_envs=2**16),
    "10^9 evaluation episodes": settings(num_eval_episodes=10**9),
    "1,024 threads": settings(num_threads=1_024),
    "10^9 restarts": settings(max_restarts=10**9),
    "a metric log of 2 GB": log("metrics.jsonl", 2 * GB),
    "more than 20,000 files": many_files,
    "a link to itself beside the logs": lambda a: a.link("loop", a.run / "loop"),
    "a pipe as config": pipe("config.yaml"),
    "a device as config": lambda a: a.link("config.yaml", a.run / "/dev/zero"),
    "a pipe as evaluations": pipe("evaluations.jsonl"),
    "a pipe as events": pipe(EVENTS),
}
"""Harms that only `resume` refuses."""

HARMLESS: dict[str, Harm] = {
    "a key of the manifest twice": text(twice),
    "unknown facts of 10 MB": fact("facts", "unknown", value="x" * 10**7),
    "evaluations of 6 GB": sparse("evaluations.jsonl"),
    "metrics of 6 GB": sparse("metrics.jsonl"),
    "metrics of 500 MB in one line": log("metrics.jsonl", 500 * 10**6),
    "events of 6 GB": log(EVENTS, 6 * GB),
    "200,000 damaged metrics": rows("metrics.jsonl", b"{}\n", 200_000),
    "300,000 damaged evaluations": rows("evaluations.jsonl", b"x\n", 300_000),
    "300,000 evaluations": rows("evaluations.jsonl", b'{"timesteps":1,"mean_reward":1,"returns":[1]}\n', 300_000),
    "metrics that a spreadsheet would execute": rows(
        "metrics.jsonl", b'{"time/total_timesteps": 1, "=cmd|calc!A0": 1}\n', 2),
    "metadata of 6 GB": sparse("metadata.json"),
    "metadata of 15 MiB of lists": lambda a: a.put("metadata.json", b'{"resumes": [' + b"[]," * (5 << 20) + b"0]}"),
    "metadata nested without end": lambda a: a.put("metadata.json", b"[" * 10**6),
    "metadata with escape sequences": lambda a: a.put("metadata.json", json.dumps(
        {"algo": "\x1b[2J", "env_id": "\x1b]0;owned\x07", "status": "failed", "error": "\x1b[31m" * 1_000})),
    "a config of 1 MiB": lambda a: a.put("config.yaml", "algo: ppo\nenv_id: x\nx: [" + "1," * 500_000 + "]\n"),
    "a config of 6 GB": sparse("config.yaml"),
    "a config with 90,000 unknown settings": lambda a: a.put("config.yaml", "".join(
        f"k{k}: 1\n" for k in range(20_000))),
    "a config with a number of 100,000 digits": lambda a: a.put("config.yaml", f"seed: 0x{'f' * 100_000}\n"),
    "a table of 6 GB": sparse("metrics.csv"),
    "`last` of 6 GB": sparse("checkpoints/best"),
    "2,000 empty checkpoints": many_checkpoints,
    "a tracker": settings(track="wandb"),
}  # fmt: skip
"""Harms that change nothing for the user, except that damaged logs are lost."""

REPLAY: dict[str, Harm] = {
    "replay data of 6 GB": large_segment(50, 6 * GB),
    "replay data of 10^9 rows": large_segment(10**9, 200 * 10**6),
    "10^40 rows of replay data": fact("facts", "replay", "transitions", "total_rows", value=2**62),
    "100,000 files of replay data": fact("facts", "replay", "transitions", "segments", value=[
        {"name": f"segment_{k}_{k + 1}.safetensors", "start": k, "stop": k + 1, "size": 8, "sha256": "0" * 64}
        for k in range(100_000)]),
    "a buffer of 10^12 rows": algorithm(buffer_size=10**12),
}  # fmt: skip
"""Harms to the replay data, which only `resume` reads."""


def _headers(count: int) -> bytes:
    header = json.dumps(
        {f"t{k}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for k in range(count)}
    )
    return struct.pack("<Q", len(header)) + header.encode()


def cases() -> list[Case]:
    """Return every way to take memory or time that is tried."""
    kinds = [
        *((name, harm, {"eval_code": 2, "resume_code": 2}) for name, harm in REFUSED.items()),
        *((name, harm, {"resume_code": 2}) for name, harm in NOT_RESUMED.items()),
        *((name, harm, {}) for name, harm in HARMLESS.items()),
        *((name, harm, {"resume_code": 2, "algo": "dqn"}) for name, harm in REPLAY.items()),
    ]
    return [Case(name, harm, bounded=True, **codes) for name, harm, codes in kinds]  # type: ignore[arg-type]
