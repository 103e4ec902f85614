"""What the documentation points to exists: links, headings, files and functions."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "rl_training"
PAGES = ["README.md", "CHANGELOG.md", "zoo/README.md"]
PAGES += sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", without_code(path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def names_in(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text(encoding="utf-8"))):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES)
def test_files_and_their_functions_exist(page):
    """`envs/stepper.py: step` is a file below src/rl_training, or of the checkout, and a function or class in it."""
    text = without_code((ROOT / page).read_text(encoding="utf-8"))
    for name, said in re.findall(r"`([\w/]+/\w+\.py)(?:: ([\w.]+))?`", text):
        found = [path for path in (SOURCE / name, ROOT / name) if path.exists()]
        assert found, name
        assert set(said.split(".")) - {""} <= names_in(found[0]), f"{name}: {said}"


def test_the_table_of_folders_names_files_and_covers_the_package():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+)/` \|.*\|([^|]*)\|$", page, re.MULTILINE)
    for folder, files in rows:
        for name in re.findall(r"`(\w+\.py)`", files):
            assert (SOURCE / folder / name).exists(), f"{folder}/{name}"
    packages = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.glob("*/__init__.py")}
    assert packages - {"contrib"} <= {folder for folder, _ in rows}
