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

BELOW_EXPERIMENT = {
    "core",
    "config",
    "envs",
    "models",
    "policies",
    "data",
    "datasets",
    "algorithms",
    "runtime",
    "version",
}
ALLOWED = {
    "core": {"core"},
    "version": set(),
    "config": {"config", "core"},
    "models": {"models", "core"},
    "models/fast": {"models", "core"},
    "policies": {"policies", "models", "core", "config.schedules"},
    "datasets": {"datasets", "core"},
    "data": {"data", "datasets.dataset", "core", "config.schedules"},
    "algorithms": {"algorithms", "policies", "models", "data", "datasets.dataset", "core", "config"},
    "runtime": {"runtime", "core"},
    "envs": {"envs", "core", "config"},
    "envs/preprocessing": {"envs.preprocessing", "envs.info_keys", "core", "config"},
    "envs/tasks": {"envs.tasks", "core"},
    "experiment": {"experiment", *BELOW_EXPERIMENT},
    "experiment/logs": {"experiment.logs", "experiment.files", "experiment.faults", "runtime", "core", "config"},
    "experiment/records": {
        "experiment.records", "experiment.files", "experiment.logs.rows", "experiment.checkpoints.folders",
        "experiment.checkpoints.format", "experiment.checkpoints.locking", "core", "config",
    },
    "lab": {
        "lab", "experiment.files", "experiment.logs", "experiment.records", "experiment.games.tournament",
        "experiment.checkpoints.locking", "core", "config", "runtime.ray_cluster",
    },
    "contrib": {"algorithms"},
    "runs": {"experiment"},
    "trainer": {"experiment"},
    "cli": {"cli", "lab", "experiment", *BELOW_EXPERIMENT},
    "__main__": {"cli"},
    "": {"version"},
}  # fmt: skip
"""Room -> packages or modules it may import; "" is `rl_training/__init__.py`.

A room is a folder. One that has no line of its own has that of the folder it is in.
"""

CLOSED = {"models": {"models.fast"}, "models/encoders": {"models.fast"}, "envs": {"envs.tasks"}}
"""What a room must not import although its line covers it: the readable network does not know its fast twin."""

DEFERRED = {
    "algorithms/base.py": {"experiment", "envs", "runtime"},
    "config/train_config.py": {"algorithms"},
    "runtime/callbacks.py": {"config"},
    "__init__.py": {"algorithms", "envs", "experiment", "models"},
    "cli/__init__.py": {"config"},
}
"""Declared upward imports: only inside functions or under TYPE_CHECKING."""

MESSAGES = "core/messages.py"
"""The only module that may pickle: it has messages between the processes of a run, never files."""

QUIET_LAYERS = ("algorithms", "data", "models", "policies")


@dataclass(frozen=True)
class Import:
    """One import of the package by itself."""

    line: int
    target: str
    """The module, or a name in it, without the package's own."""
    deferred: bool

    def is_one_of(self, names: set[str]) -> bool:
        return any(self.target == name or self.target.startswith(f"{name}.") for name in names)


def layer_of(relative: str) -> str:
    """Return the layer a file belongs to: its first folder, or its name at the top."""
    first = relative.split("/", maxsplit=1)[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def room_of(relative: str) -> str:
    """Return the folder a file is in, or its name at the top."""
    folder = relative.rpartition("/")[0]
    return folder or layer_of(relative)


def package_imports(source: str, relative: str) -> Iterator[Import]:
    """Yield every import of `rl_training`, wherever it stands in the file, relative ones resolved."""
    package = [PACKAGE, *relative.split("/")[:-1]]

    def visit(node: ast.AST, deferred: bool) -> Iterator[Import]:
        for name in _imported(node, package):
            parts = name.split(".")
            if parts[0] == PACKAGE:
                yield Import(getattr(node, "lineno", 0), ".".join(parts[1:]), deferred)
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
        return [f"{module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
        return [str(a.value) for a in node.args if isinstance(a, ast.Constant)]
    return []


def _mentions_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def layer_violations(source: str, relative: str) -> list[str]:
    """Return one line per import that the tables do not allow."""
    room, layer = room_of(relative), layer_of(relative)
    allowed = ALLOWED.get(room, ALLOWED.get(layer))
    if allowed is None:
        return [f"{relative}: layer '{layer}' is not in the table"]
    found = []
    for item in package_imports(source, relative):
        target = item.target.split(".")[0]
        if item.target.split(".")[0] == "version" or (layer == "" and target in ("", "__version__")):
            continue
        if item.is_one_of(allowed) and not item.is_one_of(CLOSED.get(room, set())):
            continue
        if item.deferred and target in DEFERRED.get(relative, set()):
            continue
        where = target if target not in (layer, "experiment") else item.target
        found.append(f"{relative}:{item.line}: {room or PACKAGE} imports {where or PACKAGE}")
    return found


def forbidden_calls(source: str, relative: str) -> list[str]:
    """Return what no file may do, what only consoles may do, and what learning code may not do."""
    layer = layer_of(relative)
    found = []
    tree = ast.parse(source)
    blocks = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and _mentions_type_checking(node.test)
    ]
    for_types = {node for block in blocks for statement in block.body for node in ast.walk(statement)}
    for node in ast.walk(tree):
        where = f"{relative}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            )
            roots = {name.split(".")[0] for name in names}
            pickles = roots & {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
            if pickles and relative != MESSAGES:
                found.append(f"{where}: pickle")
            used = {"time", "datetime", "logging", "io", "pathlib", "socket"} & roots
            if layer in QUIET_LAYERS and used and node not in for_types:
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


def stepper_violations(source: str, relative: str) -> list[str]:
    """Return where a file outside `envs` names the class behind `EnvStepper`, or reaches for the environment in it."""
    if layer_of(relative) == "envs":
        return []
    found = []
    for node in ast.walk(ast.parse(source)):
        names = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
        if "VectorStepper" in names or (isinstance(node, ast.Name) and node.id == "VectorStepper"):
            found.append(f"{relative}:{node.lineno}: VectorStepper")
        if isinstance(node, ast.Attribute) and node.attr == "env":
            holder = ast.unparse(node.value)
            if holder.endswith(("stepper", "envs", "sampler")):
                found.append(f"{relative}:{node.lineno}: {holder}.env")
    return found


def source_files() -> list[str]:
    return sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


def test_the_walk_sees_the_package():
    files = source_files()
    assert {"config/train_config.py", "algorithms/ppo.py", "experiment/start.py", "cli/__init__.py"} <= set(
        files
    )
    assert set(ALLOWED) | set(CLOSED) <= {room_of(file) for file in files}
    assert {layer_of(file) for file in files} <= set(ALLOWED)


@pytest.mark.parametrize("offenders", [layer_violations, forbidden_calls, stepper_violations])
def test_no_file_breaks_a_rule(offenders):
    files = {relative: (SOURCE / relative).read_text(encoding="utf-8") for relative in source_files()}
    assert [found for relative, source in files.items() for found in offenders(source, relative)] == []


def test_declared_exceptions_are_used():
    """An exception that nobody needs any more is removed from the table."""
    for relative, targets in DEFERRED.items():
        imports = package_imports((SOURCE / relative).read_text(encoding="utf-8"), relative)
        used = {item.target.split(".")[0] for item in imports if item.deferred}
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
        ("algorithms/ppo.py", "def f():\n    import rl_training.experiment.start\n", "algorithms imports experiment"),
        ("algorithms/base.py", "import rl_training.experiment.start\n", "algorithms imports experiment"),
        ("algorithms/base.py", "if not TYPE_CHECKING:\n    import rl_training.envs\n", "algorithms imports envs"),
        ("config/train_config.py", "from rl_training.algorithms import ALGORITHMS\n", "config imports algorithms"),
        ("models/x.py", "from rl_training.models.fast import chain\n", "models imports models.fast.chain"),
        ("models/x.py", "from rl_training.models import fast\n", "models imports models.fast"),
        ("envs/x.py", "import rl_training.envs.tasks.catch\n", "envs imports envs.tasks.catch"),
        ("envs/tasks/x.py", "from rl_training.envs.stepper import y\n", "envs/tasks imports envs.stepper.y"),
        ("policies/x.py", "from rl_training.config import TrainConfig\n", "policies imports config"),
        ("experiment/x.py", "from rl_training.lab.jobs import Job\n", "experiment imports lab"),
        ("experiment/records/x.py", "from rl_training.experiment.agent import Agent\n", "experiment.agent"),
        ("experiment/logs/x.py", "from rl_training.experiment.checkpoints import format\n", "experiment.checkpoints"),
        ("lab/x.py", "from rl_training.experiment import run\n", "lab imports experiment.run"),
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
        ("algorithms/base.py", "def f():\n    from rl_training.experiment import start\n"),
        ("algorithms/base.py", "if TYPE_CHECKING:\n    from rl_training.envs.factory import EnvFactory\n"),
        ("config/train_config.py", "def f():\n    from rl_training.algorithms import ALGORITHMS\n"),
        ("core/x.py", "import numpy\nfrom rl_training.core.types import Array\n"),
        ("experiment/x.py", "from rl_training.runtime.trainer import Trainer\n"),
        ("data/x.py", "from rl_training.config.schedules import Schedule\n"),
        ("models/encoders/x.py", "from rl_training.models.mlp import MLP\n"),
        ("experiment/checkpoints/x.py", "from rl_training.experiment.agent import Agent\n"),
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
        ("config/x.py", "eval('1')\n"),
        ("runtime/x.py", "print('x')\n"),
        ("experiment/start.py", "def f():\n    print('x')\n"),
        ("algorithms/x.py", "import time\n"),
        ("data/x.py", "import logging\n"),
        ("data/x.py", "if not TYPE_CHECKING:\n    from pathlib import Path\n"),
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
        ("algorithms/x.py", "if TYPE_CHECKING:\n    from pathlib import Path\n"),
    ],
)
def test_the_call_check_lets_pass_what_is_allowed(relative, source):
    assert forbidden_calls(source, relative) == []


@pytest.mark.parametrize(
    "source",
    [
        "from rl_training.envs.stepper import VectorStepper\n",
        "def f(stepper):\n    return stepper.env.call('x')\n",
        "class A:\n    def f(self):\n        self.evaluation_envs.env.close()\n",
        "import rl_training.envs.stepper as s\ndef f(VectorStepper):\n    return VectorStepper\n",
    ],
)
def test_the_stepper_check_catches_a_violation(source):
    assert len(stepper_violations(source, "experiment/x.py")) == 1
    assert stepper_violations(source, "envs/x.py") == []


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


def test_training_in_one_process_imports_neither_ray_nor_envpool(tmp_path):
    script = (
        "import sys, rl_training\n"
        "rl_training.PPO('CartPole-v1', num_envs=1, num_steps=16, batch_size=16, total_timesteps=16,\n"
        f"    eval_every_timesteps=0, output_dir={str(tmp_path)!r}).learn()\n"
        "import rl_training.lab.launcher, rl_training.cli.launching, rl_training.runtime.ray_cluster\n"
        "print(sorted({'ray', 'envpool'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_examples_import_nothing_from_the_package():
    examples = sorted((ROOT / "examples").glob("*.py"))
    assert examples, "the reference scripts are missing"
    for path in examples:
        imports = list(package_imports(path.read_text(encoding="utf-8"), f"examples/{path.name}"))
        assert imports == [], f"{path.name} imports the package"
