"""The generated files of the zoo are up to date; `python scripts/zoo_pages.py` updates them."""

import importlib.util

from loading import ROOT


def zoo_pages():
    spec = importlib.util.spec_from_file_location("zoo_pages", ROOT / "scripts" / "zoo_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_scores_and_page_are_current():
    assert [str(path) for path, _ in zoo_pages().stale()] == []


def test_the_page_has_every_family():
    module = zoo_pages()
    assert set(module.TITLES) == {path.parent.name for path in (ROOT / "zoo").glob("*/benchmark.yaml")}
    assert module.page().count("\n| [") == len(module.read_presets())
