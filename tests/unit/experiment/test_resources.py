"""`num_threads: auto`: a rule on sizes and cores, never a stopwatch."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from threadpoolctl import threadpool_info

from rl_training.config import TrainConfig
from rl_training.core import cpu
from rl_training.core.errors import UserError
from rl_training.core.types import EnvSpec
from rl_training.experiment import resources
from rl_training.experiment.resources import available_cores, settle_threads, using_threads

VECTOR = spaces.Box(-1.0, 1.0, (17,), np.float32)
FRAMES = spaces.Box(0, 255, (4, 84, 84), np.uint8)
BOARD = spaces.Box(0, 1, (10, 10, 4), np.float32)
TASK = spaces.Dict({"camera": spaces.Box(0, 255, (96, 96, 3), np.uint8), "speed": VECTOR})
CONTINUOUS, DISCRETE = spaces.Box(-1.0, 1.0, (6,), np.float32), spaces.Discrete(4)

RULE = [
    ("ppo, as it comes", "ppo", VECTOR, {}, 1),
    ("ppo, a wide batch", "ppo", VECTOR, {"num_steps": 2048, "batch_size": 16_384}, 1),
    ("ppo, wide", "ppo", VECTOR, {"num_steps": 512, "batch_size": 4096, "hidden_sizes": (256, 256)}, 2),
    ("ppo, a wide critic", "ppo", VECTOR, {"batch_size": 256, "critic_hidden_sizes": (1024, 1024)}, 2),
    ("a2c, as it comes", "a2c", VECTOR, {}, 1),
    ("dqn, as it comes", "dqn", VECTOR, {}, 1),
    ("td3, as it comes", "td3", VECTOR, {}, 1),
    ("sac, as it comes", "sac", VECTOR, {}, 1),
    ("sac, 512 wide", "sac", VECTOR, {"hidden_sizes": (512, 512)}, 1),
    ("sac, 1024 wide", "sac", VECTOR, {"hidden_sizes": (1024, 1024)}, 2),
    ("sac, a wide critic", "sac", VECTOR, {"critic_hidden_sizes": (1024, 1024)}, 2),
    ("sac, 2048 wide", "sac", VECTOR, {"hidden_sizes": (2048, 2048)}, 4),
    ("memory", "recurrent_ppo", VECTOR, {"core_size": 1024, "num_steps": 64, "batch_size": 512}, 1),
    ("Nature CNN", "ppo", FRAMES, {"num_steps": 128, "batch_size": 256}, 4),
    ("Nature CNN, a2c", "a2c", FRAMES, {"num_envs": 16, "num_steps": 5}, 2),
    ("Nature CNN, batch 32", "dqn", FRAMES, {"batch_size": 32}, 1),
    ("memory and images", "recurrent_ppo", FRAMES, {"num_steps": 128, "batch_size": 256}, 4),
    ("images beside numbers", "sac", TASK, {"batch_size": 256}, 4),
    ("images as numbers", "dqn", FRAMES, {"encoder": "flat", "batch_size": 32}, 1),
    ("a board", "ppo", BOARD, {"num_steps": 32, "batch_size": 256}, 1),
    ("another device", "sac", VECTOR, {"hidden_sizes": (2048, 2048), "device": "meta"}, 1),
]  # fmt: skip


def settled(algo, space, overrides, cores, monkeypatch):
    monkeypatch.setattr(resources, "available_cores", lambda: cores)
    monkeypatch.setattr(
        resources, "choose_device", lambda name: torch.device("cpu" if name == "auto" else name)
    )
    config = TrainConfig(algo=algo, env_id="X").with_overrides(**overrides)
    actions = CONTINUOUS if algo in ("sac", "td3") else DISCRETE
    return settle_threads(config, EnvSpec(space, actions, config.num_envs)).num_threads


class TestTheRule:
    @pytest.mark.parametrize(
        ("algo", "space", "overrides", "wanted"), [row[1:] for row in RULE], ids=[row[0] for row in RULE]
    )
    def test_sizes_decide(self, algo, space, overrides, wanted, monkeypatch):
        assert settled(algo, space, overrides, 64, monkeypatch) == wanted

    @pytest.mark.parametrize(("cores", "wanted"), [(1, 1), (2, 2), (3, 3), (4, 4), (128, 4)])
    def test_never_more_than_there_are_cores(self, cores, wanted, monkeypatch):
        overrides = {"num_steps": 128, "batch_size": 256}
        assert settled("ppo", FRAMES, overrides, cores, monkeypatch) == wanted

    @pytest.mark.parametrize("number", [1, 7, 1024])
    def test_a_number_stays_what_it_is(self, number, monkeypatch):
        assert settled("ppo", FRAMES, {"num_threads": number}, 2, monkeypatch) == number


class TestCores:
    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch, tmp_path):
        monkeypatch.setattr(resources.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
        monkeypatch.setattr(cpu, "CGROUP_CPU", tmp_path / "cpu.max")
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        self.quota = tmp_path / "cpu.max"

    def test_those_that_the_process_may_use(self):
        assert available_cores() == 8

    @pytest.mark.parametrize(
        ("text", "wanted"), [("3", 3), ("16", 8), ("0", 8), ("many", 8), ("2,1", 2), ("", 8)]
    )
    def test_no_more_than_openmp_is_allowed(self, text, wanted, monkeypatch):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert available_cores() == wanted

    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ("200000 100000\n", 2),
            ("50000 100000\n", 1),
            ("250000 100000\n", 2),
            ("max 100000\n", 8),
            ("?", 8),
        ],
    )
    def test_no_more_than_a_container_is_given(self, text, wanted):
        self.quota.write_text(text)
        assert available_cores() == wanted

    def test_a_system_that_does_not_tell(self, monkeypatch):
        monkeypatch.delattr(resources.os, "sched_getaffinity")
        monkeypatch.setattr(resources.os, "cpu_count", lambda: None)
        assert available_cores() == 1


def test_torch_and_blas_have_the_same_number_and_get_theirs_back():
    def pools():
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    before = torch.get_num_threads(), pools()
    with using_threads(3):
        assert (torch.get_num_threads(), pools()) == (3, {3})
        with using_threads(1):
            assert (torch.get_num_threads(), pools()) == (1, {1})
        assert (torch.get_num_threads(), pools()) == (3, {3})
    assert (torch.get_num_threads(), pools()) == before


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
