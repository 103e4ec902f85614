"""Writes `algorithms/keywords.pyi`: the settings of each algorithm as keywords that type checkers and editors know.

python scripts/write_keywords.py

Run it after you add or change a setting; a test compares the file with the settings.
"""

import ast
import builtins
import inspect
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from rl_training.algorithms import ALGORITHMS
from rl_training.config import AlgorithmConfig, TrainConfig
from rl_training.config.fields import CheckedConfig, field_docs

FILE = Path(__file__).resolve().parents[1] / "src/rl_training/algorithms/keywords.pyi"
HEADER = '''"""Settings as keyword arguments, for type checkers and editors.

Written by scripts/write_keywords.py: do not edit.
"""

'''
ENVIRONMENT = '''EnvBuilder: TypeAlias = Callable[..., Env[Any, Any]]
"""A function that builds a new environment each time it is called."""
ConfigOrEnv: TypeAlias = TrainConfig | EnvBuilder | str | None
"""The first argument of an algorithm: a config, an environment id, or a function that builds an environment."""'''
ARGUMENTS = '''    env: EnvBuilder | str | None
    """With a config: an environment in the place of its own, as an id or a function that builds one."""
    encoder: EncoderClass | str | None
    """What turns observations into features: the name of an encoder, or your own class."""'''
NOT_KEYWORDS = {"algo", "encoder"}
"""`algo` is the class itself; `encoder` also takes a class."""
WIDER = {"tuple[int, ...]": "Sequence[int]", "tuple[int, ...] | None": "Sequence[int] | None"}
"""What users may give where the settings hold a tuple."""
PATHS = {"output_dir": "str | PathLike[str]"}


class Keywords:
    """The `TypedDict` classes, and the imports that their annotations need."""

    def __init__(self) -> None:
        self.imports: set[tuple[str, str]] = {
            ("collections.abc", "Callable"),
            ("gymnasium", "Env"),
            ("rl_training.algorithms.losses", "LossFunction"),
            ("rl_training.config", "TrainConfig"),
            ("rl_training.models.encoders", "EncoderClass"),
            ("typing", "TypeAlias"),
            ("typing", "TypedDict"),
        }
        self.classes: list[str] = []

    def add(
        self, name: str, base: str, config_class: type[CheckedConfig], losses: Iterable[str] = ()
    ) -> None:
        """Add a class with the fields of a settings class and of its bases, and with the names of losses."""
        lines = [f"class {name}({base}, total=False):", f'    """Settings of {config_class.__name__}."""', ""]
        lines += [ARGUMENTS] if config_class is TrainConfig else []
        found = field_docs(config_class)
        for item in fields(config_class):  # type: ignore[arg-type]  # always mixed into a dataclass
            if item.name not in NOT_KEYWORDS:
                doc = found[item.name]
                lines += [f"    {item.name}: {self._annotation(item.name, doc.owner, doc.annotation)}"]
                lines += [f'    """{doc.text}"""']
        for loss in losses:
            lines += [
                f"    {loss}: LossFunction",
                '    """Your own function in the place of the built-in one."""',
            ]
        self.classes.append("\n".join(lines))

    def _annotation(self, name: str, owner: type, annotation: str) -> str:
        text = PATHS.get(name) or WIDER.get(annotation, annotation)
        imported = imports_of(owner)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Name) and node.id in imported:
                self.imports.add((imported[node.id], node.id))
        if "Sequence" in text:
            self.imports.add(("collections.abc", "Sequence"))
        if "PathLike" in text:
            self.imports.add(("os", "PathLike"))
        return text

    def source(self) -> str:
        """Return the module."""
        imports = "\n".join(f"from {module} import {name}" for module, name in sorted(self.imports))
        return HEADER + imports + "\n\n" + "\n\n\n".join([ENVIRONMENT, *self.classes]) + "\n"


def imports_of(owner: type) -> dict[str, str]:
    """Return the module that each name in a class's module comes from; its own names come from itself."""
    module = sys.modules[owner.__module__]
    found = dict.fromkeys(vars(module), module.__name__)
    for name in vars(builtins):
        found.pop(name, None)
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {alias.name: node.module for alias in node.names}
    return found


def keywords_source() -> str:
    """Return the module, formatted."""
    keywords = Keywords()
    keywords.add("RunKeywords", "TypedDict", TrainConfig)
    for algorithm in ALGORITHMS.values():
        assert issubclass(algorithm.config_class, AlgorithmConfig)
        losses = algorithm.losses(algorithm.config_class())
        keywords.add(f"{algorithm.__name__}Keywords", "RunKeywords", algorithm.config_class, losses)
    text = keywords.source()
    for command in (["check", "--fix", "--select", "I"], ["format"]):
        words = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(FILE), "-"]
        text = subprocess.run(words, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    FILE.write_text(keywords_source(), encoding="utf-8")
