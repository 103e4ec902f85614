"""Two implementations are compared in float64, where rounding cannot hide a difference."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def float64_on_one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the scripts and the package train: small networks are fastest so
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)
