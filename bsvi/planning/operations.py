"""What a step costs without doing it: operations, bytes and memory, counted on tensors of the meta device."""

import weakref
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from bsvi.nets.flops import convolution_backward_flops
from bsvi.planning.devices import Kernel, KernelKind

aten = torch.ops.aten
_CONVOLUTIONS = {aten.convolution, aten.convolution_backward}
_NO_KERNEL = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten._unsafe_view, aten.lift_fresh}


class OperationCounter(TorchDispatchMode):
    """Counts every operation that runs inside, and the bytes of the tensors that are alive at once.

    Python references decide when a tensor dies, as in a real step, so ``peak`` is what an allocator without waste would
    need beyond the tensors that were there before. (torch's FlopCounterMode counts the same operations, but its hooks
    on modules keep the activations alive that checkpointing would free.)

    >>> with OperationCounter() as counter:
    ...     product = torch.ones(2, 3, device="meta") @ torch.ones(3, 4, device="meta")
    >>> counter.flops, counter.peak
    (48, 104)
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[Kernel] = Counter()
        self.live = self.peak = 0
        self._storages: dict[int, weakref.ref[Any]] = {}

    @property
    def flops(self) -> int:
        """Floating-point operations of matrix products and convolutions, as torch counts them."""
        return sum(kernel.flops * count for kernel, count in self.kernels.items())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is aten._local_scalar_dense.default and args[0].device.type == "meta":
            return True  # the one question that is asked of values: whether all of x is finite
        out = func(*args, **kwargs)
        results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if results and not func.is_view and func._overloadpacket not in _NO_KERNEL:
            self.kernels[self._kernel(func._overloadpacket, args, kwargs, out, results)] += 1
        for tensor in results:
            self._keep(tensor)
        return out

    def _kernel(self, packet: Any, args: Any, kwargs: dict[str, Any], out: Any, results: list[Tensor]) -> Kernel:
        touched = {id(leaf): leaf for leaf in (*tree_leaves((args, kwargs)), *results) if isinstance(leaf, Tensor)}
        moved = sum(tensor.numel() * tensor.element_size() for tensor in touched.values())
        kind: KernelKind = (
            "convolution" if packet in _CONVOLUTIONS else "product" if packet in flop_registry else "other"
        )
        if packet is aten.convolution_backward:
            flops = convolution_backward_flops(*(a.shape if isinstance(a, Tensor) else a for a in args))
        else:
            flops = flop_registry[packet](*args, **kwargs, out_val=out) if kind != "other" else 0
        return Kernel(kind, flops, moved)

    def _keep(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._storages:
            return

        def forget(_: Any) -> None:
            self.live -= size
            del self._storages[key]

        self._storages[key] = weakref.ref(storage, forget)
        self.live += size
        self.peak = max(self.peak, self.live)

    def ignore(self, tensors: Any) -> None:
        """Leave these tensors out of the memory: they are there before, and stay."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._storages.setdefault(storage._cdata, weakref.ref(storage))
