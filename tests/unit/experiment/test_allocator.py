import subprocess
import sys

import pytest

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


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_what_was_freed_is_used_again_without_page_faults() -> None:
    """By itself glibc gives such blocks back each time; otherwise this would say nothing."""
    assert faults("kept") < 5_000 < 20_000 < faults("as it is")
