"""docs/correctness.md must name tests that exist."""

import re

from loading import ROOT

PAGE = (ROOT / "docs" / "correctness.md").read_text(encoding="utf-8")


def defined_tests() -> set[str]:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    return {name for source in sources for name in re.findall(r"^\s*def (test_\w+)", source, re.MULTILINE)}


def test_every_named_test_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) >= 25
    assert named <= defined_tests(), named - defined_tests()


def test_every_trap_row_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 20
    assert [row for row in rows if "`test_" not in row] == []


def test_every_test_of_the_traps_folder_is_listed() -> None:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "traps").glob("test_*traps.py"))
    tests = {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE)}
    assert len(tests) >= 40
    assert tests <= set(re.findall(r"`(test_\w+)`", PAGE)), tests - set(re.findall(r"`(test_\w+)`", PAGE))
