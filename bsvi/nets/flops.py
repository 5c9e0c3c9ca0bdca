"""Operations of a convolution's backward pass, for those who count."""

import math
from collections.abc import Sequence
from typing import Any


def convolution_backward_flops(
    grad: Sequence[int], x: Sequence[int], weight: Sequence[int], *rest: Any, out_shape: Any = None
) -> int:
    """Return a forward convolution's count for each gradient asked for: torch's own count forgets the groups."""
    wanted = rest[-1]
    return 2 * math.prod(grad) * math.prod(weight[1:]) * (bool(wanted[0]) + bool(wanted[1]))
