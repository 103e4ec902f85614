"""A device that is not there: its numbers lie in main memory, but torch treats them as another device's.

`torch.device("pretend")` is torch's reserved backend for devices of other makers. Tensors on it wrap CPU tensors, so
what is computed is real and can be compared with a run on the CPU. What a GPU would refuse is refused: operations that
mix devices, `numpy()` without `cpu()`. What a GPU would have to wait for is counted: `transfers` lists every copy to
the CPU, every `item()` and every index that comes from the CPU. It cannot show a GPU's kernels, their rounding, their
asynchrony or its memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
COPIES = ("aten::_to_copy", "aten::copy_")
"""The only operations that may read one device and write another."""
INDEXED = ("aten::index", "aten::index_put_")
"""A GPU takes indices from the CPU, too, at the price of a transfer."""
transfers: list[str] = []
"""What would have made the CPU and the device wait for each other, in order."""


class PretendTensor(Tensor):
    """A tensor on the pretend device."""

    @staticmethod
    def __new__(cls, content: Tensor) -> "PretendTensor":
        made: PretendTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            content.size(),
            strides=content.stride(),
            storage_offset=content.storage_offset(),
            dtype=content.dtype,
            device=torch.device(NAME, 0),
        )
        return made

    def __init__(self, content: Tensor) -> None:
        self.content = content

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PretendTensor({self.content})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copied: Tensor = PretendTensor(self.content.detach().clone())
            is_parameter = isinstance(self, nn.Parameter)
            memo[id(self)] = nn.Parameter(copied, self.requires_grad) if is_parameter else copied
        found: Tensor = memo[id(self)]
        return found

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, other: "PretendTensor") -> None:
        """Use the other tensor's memory from now on."""
        self.content = other.content

    def tolist(self) -> Any:
        transfers.append("tolist")
        return self.content.tolist()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("lstm", "gru"):  # otherwise torch asks the device for kernels of its own
            return decomposition_table[getattr(torch.ops.aten, name).input](*args, **kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _PretendMode(TorchDispatchMode):
    """Sees the operations that have no tensor on the device yet: those that make one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run one operation on the CPU, and return its results where a device would have them."""
    name = func._schema.name
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    on_device = any(isinstance(tensor, PretendTensor) for tensor in tensors)
    if on_device:
        _note_transfers(name, tensors, kwargs)
    plain_args, plain_kwargs = tree_map(
        lambda leaf: leaf.content if isinstance(leaf, PretendTensor) else leaf, (args, kwargs)
    )
    if kwargs.get("device") is not None:
        on_device = torch.device(kwargs["device"]).type == NAME
        plain_kwargs["device"] = "cpu" if on_device else kwargs["device"]
    result = func(*plain_args, **plain_kwargs)
    if name.endswith("_") and isinstance(args[0], PretendTensor):  # in place
        return args[0]
    if not on_device:
        return result
    return tree_map(lambda leaf: PretendTensor(leaf) if isinstance(leaf, Tensor) else leaf, result)


def _note_transfers(name: str, tensors: list[Tensor], kwargs: dict[str, Any]) -> None:
    """Refuse operations that mix devices, and list those that make the CPU and the device wait for each other."""
    from_cpu = any(not isinstance(tensor, PretendTensor) and tensor.dim() > 0 for tensor in tensors)
    if name == "aten::_local_scalar_dense":
        transfers.append("item")
    elif name == "aten::_to_copy":
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type != NAME:
            transfers.append("cpu")
    elif name in INDEXED and from_cpu:
        transfers.append("index")
    elif name not in COPIES and from_cpu:
        shapes = [(tensor.device.type, tuple(tensor.shape)) for tensor in tensors]
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, but got {shapes}")


def _copied_to_device(source: Tensor, target: PretendTensor, non_blocking: bool = False) -> Tensor:
    target.content.copy_(source)
    return target


_setup_privateuseone_for_python_backend(NAME)
_library = torch.library.Library("aten", "IMPL")
# what `torch.tensor(…, device=…)` does below the reach of the mode
_library.impl(
    "empty_strided",
    lambda size, stride, *, dtype=None, **_: PretendTensor(torch.empty_strided(size, stride, dtype=dtype)),
    "PrivateUse1",
)
_library.impl("_copy_from", _copied_to_device, "PrivateUse1")


@contextmanager
def pretend_device() -> Iterator[str]:
    """Let tensors be made on the device meanwhile; its name is what `device` takes in a config."""
    transfers.clear()
    with _PretendMode():
        yield NAME
