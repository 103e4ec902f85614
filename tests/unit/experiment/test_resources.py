"""Memory of a run: what is available, and what it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

from rl_training.core.errors import UserError
from rl_training.experiment import resources


def limits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str | None, usage: str | None, free: int | None
) -> None:
    """Pretend that a container has this limit and usage, and the machine so much free memory."""
    for name, text in (("limit", limit), ("usage", usage)):
        if text is not None:
            (tmp_path / name).write_text(text)
    monkeypatch.setattr(resources, "CGROUP_LIMITS", (str(tmp_path / "nowhere"), str(tmp_path / "limit")))
    monkeypatch.setattr(resources, "CGROUP_USAGES", (str(tmp_path / "nowhere"), str(tmp_path / "usage")))
    monkeypatch.setattr(resources, "CGROUP_STATISTICS", ())
    monkeypatch.setattr(resources, "_meminfo", lambda: free)


@pytest.mark.parametrize(
    ("limit", "usage", "free", "expected"),
    [
        ("1000\n", "300\n", 5000, 700),
        ("1000\n", "300\n", 200, 200),
        ("1000\n", "300\n", None, 700),
        ("1000\n", "1200\n", 5000, 0),
        ("max\n", "300\n", 5000, 5000),
        (None, None, 5000, 5000),
        ("1000\n", None, 5000, 5000),
        (None, None, None, None),
    ],
)
def test_the_narrowest_limit_counts(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    limit: str | None,
    usage: str | None,
    free: int | None,
    expected: int | None,
) -> None:
    limits(monkeypatch, tmp_path, limit, usage, free)
    assert resources.available_memory() == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("anon 200\ninactive_file 90\n", 790),
        ("inactive_file 5\ntotal_inactive_file 90\n", 790),
        ("anon 200\n", 700),
        ("odd", 700),
    ],
)
def test_file_cache_that_can_be_given_back_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, expected: int
) -> None:
    limits(monkeypatch, tmp_path, "1000\n", "300\n", None)
    (tmp_path / "stat").write_text(text)
    monkeypatch.setattr(resources, "CGROUP_STATISTICS", (str(tmp_path / "nowhere"), str(tmp_path / "stat")))
    assert resources.available_memory() == expected


def test_this_machine_tells_how_much_there_is() -> None:
    found = resources.available_memory()
    assert found is None or 0 <= found < 2**60


def test_a_refusal_is_one_sentence_with_both_sizes_and_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limits(monkeypatch, tmp_path, None, None, 8_000_000_000)
    with pytest.raises(UserError) as caught:
        resources.check_memory(168_000_000_000, "the replay buffer", "use a smaller buffer_size")
    assert str(caught.value) == (
        "the replay buffer needs 168 GB of memory, but 8.0 GB are available; use a smaller buffer_size"
    )


@pytest.mark.parametrize(("needed", "refused"), [(999, False), (1000, False), (1001, True)])
def test_exactly_what_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, needed: int, refused: bool
) -> None:
    limits(monkeypatch, tmp_path, None, None, 1000)
    if refused:
        with pytest.raises(UserError):
            resources.check_memory(needed, "it", "use less")
    else:
        resources.check_memory(needed, "it", "use less")


def test_nothing_is_refused_where_the_system_does_not_tell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limits(monkeypatch, tmp_path, None, None, None)
    resources.check_memory(2**60, "it", "use less")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 kB"),
        (1500, "2 kB"),
        (1_000_000, "1.0 MB"),
        (9_940_000, "9.9 MB"),
        (168_000_000, "168 MB"),
        (2_500_000_000, "2.5 GB"),
        (3_000_000_000_000, "3.0 TB"),
    ],
)
def test_sizes_are_written_for_people(size: int, text: str) -> None:
    assert resources.size_text(size) == text


SCRIPT = """
import resource, sys
import numpy as np
if sys.argv[1] == "kept":
    from rl_training.experiment.resources import keep_freed_memory
    assert keep_freed_memory()
def update():
    blocks = [np.ones(12 * 2**17) for _ in range(3)]
update(), update()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    update()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(kind: str) -> int:
    """Return the page faults of 50 updates that need 36 MB each."""
    words = [sys.executable, "-c", SCRIPT, kind]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_what_was_freed_is_used_again_without_page_faults() -> None:
    """By itself glibc gives such blocks back each time; otherwise this would say nothing."""
    assert faults("kept") < 5_000 < 20_000 < faults("as it is")
