"""Who may import whom, and what some layers must never do: read from the source, not from a promise."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "rl_training"
PACKAGE = "rl_training"

EVERYTHING = {
    "core", "config", "envs", "models", "policies", "data", "algorithms", "runtime", "experiment", "contrib",
    "cli", "runs", "trainer", "version",
}  # fmt: skip
ALLOWED = {
    "core": {"core"},
    "version": set(),
    "config": {"core"},
    "envs": {"envs", "core", "config"},
    "models": {"models", "core"},
    "policies": {"policies", "models", "core"},
    "data": {"data", "core"},
    "algorithms": {"algorithms", "policies", "models", "data", "core", "config"},
    "runtime": {"runtime", "core"},
    "experiment": EVERYTHING - {"cli", "runs", "trainer"},
    "contrib": {"contrib", "algorithms", "policies", "models", "data", "core", "config"},
    "runs": {"experiment"},
    "trainer": {"experiment"},
    "cli": EVERYTHING,
    "__main__": {"cli"},
    "": {"version"},
}
"""Layer -> layers it may import; "" is `rl_training/__init__.py`."""

DEFERRED = {
    "algorithms/base.py": {"experiment", "envs", "runtime"},
    "config.py": {"algorithms"},
    "runtime/callbacks.py": {"config"},
    "__init__.py": {"algorithms", "envs", "experiment", "models"},
    "cli/__init__.py": {"config"},
}
"""Declared upward imports: only inside functions or under TYPE_CHECKING."""

QUIET_LAYERS = ("algorithms", "data", "models", "policies")


@dataclass(frozen=True)
class Import:
    """One import of the package by itself."""

    line: int
    layer: str
    deferred: bool


def layer_of(relative: str) -> str:
    """Return the layer a file belongs to: its folder, or its name at the top."""
    first = relative.split("/", maxsplit=1)[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def package_imports(source: str, relative: str) -> Iterator[Import]:
    """Yield every import of `rl_training`, wherever it stands in the file, relative ones resolved."""
    package = [PACKAGE, *relative.split("/")[:-1]]

    def visit(node: ast.AST, deferred: bool) -> Iterator[Import]:
        for name in _imported(node, package):
            parts = name.split(".")
            if parts[0] == PACKAGE:
                yield Import(getattr(node, "lineno", 0), parts[1] if len(parts) > 1 else "", deferred)
        if isinstance(node, ast.If) and _mentions_type_checking(node.test):
            for child in node.body:
                yield from visit(child, True)
            for child in node.orelse:
                yield from visit(child, deferred)
            return
        inner = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inner)

    yield from visit(ast.parse(source), False)


def _imported(node: ast.AST, package: list[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        # `from rl_training import data` names a layer; `from rl_training.data import x` already has one
        return [f"{module}.{alias.name}" for alias in node.names] if module == PACKAGE else [module]
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
        return [str(a.value) for a in node.args if isinstance(a, ast.Constant)]
    return []


def _mentions_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def layer_violations(source: str, relative: str) -> list[str]:
    """Return one line per import that the table does not allow."""
    layer = layer_of(relative)
    if layer not in ALLOWED:
        return [f"{relative}: layer '{layer}' is not in the table"]
    found = []
    for item in package_imports(source, relative):
        target = item.layer
        if layer == "" and target == "":
            continue
        if target in ALLOWED[layer] or target == "version":
            continue
        if item.deferred and target in DEFERRED.get(relative, set()):
            continue
        found.append(f"{relative}:{item.line}: {layer or PACKAGE} imports {target or PACKAGE}")
    return found


def forbidden_calls(source: str, relative: str) -> list[str]:
    """Return what no file may do, what only consoles may do, and what learning code may not do."""
    layer = layer_of(relative)
    found = []
    for node in ast.walk(ast.parse(source)):
        where = f"{relative}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            )
            roots = {name.split(".")[0] for name in names}
            if roots & {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}:
                found.append(f"{where}: pickle")
            if layer in QUIET_LAYERS and roots & {"time", "datetime", "logging", "io", "pathlib", "socket"}:
                found.append(f"{where}: clock, log or file in {layer}")
            if isinstance(node, ast.ImportFrom) and node.module == "torch":
                found += [f"{where}: torch.load" for alias in node.names if alias.name in ("load", "save")]
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in ("torch.load", "torch.save", "eval", "exec", "builtins.eval", "yaml.unsafe_load"):
                found.append(f"{where}: {name}")
            if any(k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in node.keywords):
                found.append(f"{where}: allow_pickle")
            if name == "print" and layer != "cli" and relative != "experiment/console.py":
                found.append(f"{where}: print")
            if layer in QUIET_LAYERS and (
                name == "open" or name.endswith((".open", ".read_text", ".write_text"))
            ):
                found.append(f"{where}: open")
    return found


def source_files() -> list[str]:
    return sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


def test_the_walk_sees_the_package():
    files = source_files()
    assert {"config.py", "algorithms/ppo.py", "experiment/runs.py", "cli/__init__.py"} <= set(files)
    assert {layer_of(file) for file in files} <= set(ALLOWED)


@pytest.mark.parametrize("offenders", [layer_violations, forbidden_calls])
def test_no_file_breaks_a_rule(offenders):
    files = {relative: (SOURCE / relative).read_text(encoding="utf-8") for relative in source_files()}
    assert [found for relative, source in files.items() for found in offenders(source, relative)] == []


def test_declared_exceptions_are_used():
    """An exception that nobody needs any more is removed from the table."""
    for relative, targets in DEFERRED.items():
        imports = package_imports((SOURCE / relative).read_text(encoding="utf-8"), relative)
        used = {item.layer for item in imports if item.deferred}
        assert targets <= used, f"{relative} no longer needs {targets - used}"


@pytest.mark.parametrize(
    ("relative", "source", "culprit"),
    [
        ("core/x.py", "import rl_training.config\n", "core imports config"),
        ("core/x.py", "from rl_training.data.sources import RolloutSource\n", "core imports data"),
        ("core/x.py", "from ..data import sources\n", "core imports data"),
        ("runtime/x.py", "from rl_training.envs import make_env\n", "runtime imports envs"),
        ("runtime/x.py", "def f():\n    from rl_training.algorithms import PPO\n", "runtime imports algorithms"),
        ("models/x.py", "from rl_training import policies\n", "models imports policies"),
        ("data/x.py", "try:\n    import rl_training.experiment\nfinally:\n    pass\n", "data imports experiment"),
        ("experiment/x.py", "class A:\n    import rl_training.cli.train\n", "experiment imports cli"),
        ("experiment/x.py", "from rl_training.runs import make_run_dir\n", "experiment imports runs"),
        ("algorithms/ppo.py", "def f():\n    import rl_training.experiment.runs\n", "algorithms imports experiment"),
        ("algorithms/base.py", "import rl_training.experiment.runs\n", "algorithms imports experiment"),
        ("algorithms/base.py", "if not TYPE_CHECKING:\n    import rl_training.envs\n", "algorithms imports envs"),
        ("config.py", "from rl_training.algorithms import ALGORITHMS\n", "config imports algorithms"),
        ("envs/x.py", "import importlib\nimportlib.import_module('rl_training.runtime')\n", "envs imports runtime"),
        ("__init__.py", "from rl_training.config import TrainConfig\n", "rl_training imports config"),
        ("newlayer/x.py", "import numpy\n", "'newlayer' is not in the table"),
    ],
)  # fmt: skip
def test_the_walker_catches_a_violation(relative, source, culprit):
    (violation,) = layer_violations(source, relative)
    assert culprit in violation


@pytest.mark.parametrize(
    ("relative", "source"),
    [
        ("algorithms/base.py", "def f():\n    from rl_training.experiment import runs\n"),
        ("algorithms/base.py", "if TYPE_CHECKING:\n    from rl_training.envs.factory import EnvFactory\n"),
        ("config.py", "def f():\n    from rl_training.algorithms import ALGORITHMS\n"),
        ("core/x.py", "import numpy\nfrom rl_training.core.types import Array\n"),
        ("experiment/x.py", "from rl_training.runtime.trainer import Trainer\n"),
    ],
)
def test_the_walker_lets_pass_what_is_allowed(relative, source):
    assert layer_violations(source, relative) == []


@pytest.mark.parametrize(
    ("relative", "source"),
    [
        ("core/x.py", "import pickle\n"),
        ("core/x.py", "from pickle import loads\n"),
        ("experiment/x.py", "import torch\ntorch.load('x')\n"),
        ("experiment/x.py", "from torch import load\n"),
        ("experiment/x.py", "import numpy as np\nnp.load('x', allow_pickle=True)\n"),
        ("config.py", "eval('1')\n"),
        ("runtime/x.py", "print('x')\n"),
        ("experiment/runs.py", "def f():\n    print('x')\n"),
        ("algorithms/x.py", "import time\n"),
        ("data/x.py", "import logging\n"),
        ("models/x.py", "open('x')\n"),
        ("policies/x.py", "def f(path):\n    path.open()\n"),
    ],
)
def test_the_call_check_catches_a_violation(relative, source):
    assert len(forbidden_calls(source, relative)) == 1


@pytest.mark.parametrize(
    ("relative", "source"),
    [
        ("cli/x.py", "print('x')\n"),
        ("experiment/console.py", "print('x')\n"),
        ("runtime/x.py", "import time\n"),
    ],
)
def test_the_call_check_lets_pass_what_is_allowed(relative, source):
    assert forbidden_calls(source, relative) == []


def test_importing_the_package_or_its_command_line_imports_nothing_heavy():
    script = (
        "import sys, rl_training, rl_training.cli\n"
        "assert rl_training.__version__\n"
        "assert rl_training.cli.main(['--version']) == 0\n"
        "assert rl_training.cli.main(['--help']) == 0\n"
        "print(sorted({'torch', 'numpy', 'gymnasium', 'matplotlib', 'wandb', 'tyro'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_importing_everything_needs_no_optional_dependency():
    """The learning and experiment layers import in one go without tracker, video writer or TensorBoard."""
    script = (
        "import sys\n"
        "for name in ('wandb', 'imageio_ffmpeg', 'tensorboard', 'pygame', 'ray', 'ale_py', 'cv2', 'mujoco'):\n"
        "    sys.modules[name] = None\n"
        "import rl_training.algorithms, rl_training.experiment, rl_training.trainer, rl_training.runs\n"
        "import rl_training.cli.train, rl_training.cli.eval, rl_training.cli.resume\n"
        "print('imported')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "imported"


def test_examples_import_nothing_from_the_package():
    examples = sorted((ROOT / "examples").glob("*.py"))
    assert examples, "the reference scripts are missing"
    for path in examples:
        imports = list(package_imports(path.read_text(encoding="utf-8"), f"examples/{path.name}"))
        assert imports == [], f"{path.name} imports the package"
