import resource
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import numpy as np
if sys.argv[1] == "kept":
    from rl_training.experiment.allocator import keep_freed_memory
    assert keep_freed_memory()
for _ in range(3):
    np.ones(2**19)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    # 4 MB and a larger block, as an update frees them: by itself glibc gives them back each time
    first, second = np.ones(2**19), np.ones(2**20)
    del first, second
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_what_was_freed_is_used_again_without_page_faults() -> None:
    """12 MB are 3,072 pages: a process that gave them back each time would fault for each of them."""
    words = [sys.executable, "-c", SCRIPT, "kept"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 10_000 < 200 * 12 * 2**20 / resource.getpagesize()
