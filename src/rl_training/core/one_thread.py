"""One thread for torch and BLAS: the last bits of some results depend on the number of threads."""

import contextlib
from collections.abc import Iterator

import torch
from threadpoolctl import ThreadpoolController


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Give torch and BLAS one thread each for a while, regardless of environment variables."""
    before, pools = torch.get_num_threads(), ThreadpoolController().select(user_api="blas")
    torch.set_num_threads(1)
    try:
        with pools.limit(limits=1):
            yield
    finally:
        torch.set_num_threads(before)
