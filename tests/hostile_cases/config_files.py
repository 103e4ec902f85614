"""Config files as editors, other programs and misunderstandings leave them."""

import os
from typing import Any

from hostile_cases.case import Arena, Case

GOOD = "algo: ppo\nenv_id: CartPole-v1\n"
BOMB = "a: &a [x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, after in zip("abcdefghijklmnop", "bcdefghijklmnopq", strict=True)
)


def config(name: str, content: str | bytes, *words: str, **more: Any) -> Case:
    """Return a case whose config has this content."""
    arguments = ("train", "--config", "settings.yaml", "--output-dir", "runs")
    more.setdefault("prepare", lambda arena: arena.put("settings.yaml", content))
    return Case(name, arguments, ("settings.yaml", *words), **more)


def pipe(arena: Arena) -> None:
    """Put a pipe that nobody writes to."""
    os.mkfifo(arena.here / "settings.yaml")


def sparse(arena: Arena) -> None:
    """Put a file of 64 MiB that takes no room."""
    os.truncate(arena.put("settings.yaml", ""), 64 << 20)


CASES = [
    config("no such file", "", "does not exist", prepare=lambda arena: None),
    config("a folder", "", prepare=lambda arena: (arena.here / "settings.yaml").mkdir()),
    config("a pipe that nobody writes to", "", prepare=pipe),
    config("a file of 64 MiB", "", prepare=sparse),
    config("an empty file", ""),
    config("a list", "- ppo\n- CartPole-v1\n", "not a map"),
    config("a word", "ppo\n", "not a map"),
    config("a picture", b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe"),
    config("UTF-16", GOOD.encode("utf-16")),
    config("a NUL in it", GOOD + "output_dir: \"a\\0b\"\n", "\\0", ),
    config("a byte of nothing in it", GOOD.encode() + b"seed: 1\x00\n"),
    config("tabs", "algo: ppo\n\tenv_id: CartPole-v1\n", "not valid YAML", "'\\t'", "line 2"),
    config("a bracket too few", "algo: [ppo\n", "not valid YAML"),
    config("a template that was not filled in", "algo: ppo\nenv_id: {{ environment }}\n", "not valid YAML"),
    config("a key twice", GOOD + "seed: 1\nseed: 2\n", "'seed' is written twice"),
    config("two documents", GOOD + "---\n" + GOOD),
    config("aliases that grow", GOOD + BOMB),
    config("an alias of nothing", GOOD + "env_kwargs: *nothing\n", "nothing"),
    config("a list that contains itself", GOOD + "env_kwargs: &a {a: *a}\n", "env_kwargs"),
    config("brackets without end", GOOD + "env_kwargs: " + "[" * 100_000, ),
    config("an object of Python", GOOD + "seed: !!python/object/apply:os.getpid []\n", "python/object"),
    config("a merge", "base: &b {algo: ppo}\n<<: *b\nenv_id: CartPole-v1\n"),
    config("a key that is a number", GOOD + "3: 4\n", "3"),
    config("a key that is a list", GOOD + "[1, 2]: 4\n"),
    config("a setting misspelt", GOOD + "num_env: 3\n", "num_env", "num_envs"),
    config("a setting of the algorithm, misspelt", GOOD + "algorithm: {gama: 0.9}\n", "algorithm.gama", "gamma"),
    config("a setting one level too high", GOOD + "clip_coef: 0.1\n", "clip_coef", "algorithm"),
    config("a setting one level too low", GOOD + "algorithm: {seed: 1}\n", "seed"),
    config("a setting of another library", GOOD + "n_envs: 3\n", "here it is called 'num_envs'"),
    config("a word for a number", GOOD + "seed: many\n", "seed is 'many'"),
    config("a list for a number", GOOD + "total_timesteps: [1]\n", "total_timesteps"),
    config("nothing for a number", GOOD + "num_envs:\n", "num_envs"),
    config("a date for a number", GOOD + "seed: 2020-01-01\n", "seed"),
    config("a truth for a number", GOOD + "seed: yes\n", "seed"),
    config("settings of an algorithm as a word", GOOD + "algorithm: fast\n", "algorithm"),
    config("no algorithm", "env_id: CartPole-v1\n", "'algo' is missing"),
    config("an algorithm misspelt in a config", "algo: pppo\nenv_id: CartPole-v1\n", "did you mean 'ppo'"),
    config("many problems at once", GOOD + "num_env: 3\nsede: 4\nnum_envs: x\n", "num_env", "sede", "num_envs is 'x'"),
]  # fmt: skip
