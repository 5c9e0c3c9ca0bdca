"""The vertical convolution of a PixelCNN with large kernels, computed in the frequency domain *along the width only*.

A row of the vertical stack may see every column of the rows above, so mixing columns cannot leak a pixel: the rows are
convolved directly and causality holds bit by bit, which a two-dimensional transform would lose to rounding. Along the
width a kernel of k taps costs k multiplications per output directly and 47/28 = 1.7 here (28 columns, k = 9).

The transform is real throughout: three real products make one complex product (Gauss), so the algorithm is
`synthesise @ ((analyse @ x) * (of_kernel @ w))` with three fixed real matrices, and each frequency is one group of a
grouped convolution over the rows. It is the same sum in another order: float64 agrees to 1e-14.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

Matrices = tuple[
    Float[Tensor, "frequencies width"], Float[Tensor, "frequencies taps"], Float[Tensor, "width frequencies"]
]


def make_matrices(width: int, taps: int) -> Matrices:
    """Return (analyse, of_kernel, synthesise) in float64 for a centred kernel of `taps` taps over `width` columns.

    >>> analyse, of_kernel, synthesise = make_matrices(width=6, taps=3)
    >>> x, w = torch.arange(6.0).double(), torch.tensor([1.0, 10.0, 100.0]).double()
    >>> (synthesise @ ((analyse @ x) * (of_kernel @ w))).round()  # column 1 is 0*1 + 1*10 + 2*100
    tensor([100., 210., 321., 432., 543.,  54.], dtype=torch.float64)
    """
    reach = taps // 2
    period = width + reach  # the zeros that separate the end of the row from its beginning serve both sides
    column = torch.arange(width, dtype=torch.float64)
    tap = torch.arange(taps, dtype=torch.float64) - reach
    analyse, of_kernel, synthesise = [], [], []
    for frequency in range(period // 2 + 1):
        angle = 2 * math.pi * frequency / period
        cos, sin = torch.cos(angle * column), torch.sin(angle * column)
        real, imaginary = torch.cos(angle * tap), torch.sin(angle * tap)
        if frequency == 0 or 2 * frequency == period:  # these two are real: one product
            analyse += [cos]
            of_kernel += [real]
            synthesise += [cos / period]
        else:  # x = cos - i sin, w = real + i imaginary; x*w from (xr + xi) wr, xr (wi - wr), xi (wr + wi)
            analyse += [cos - sin, cos, -sin]
            of_kernel += [real, imaginary - real, real + imaginary]
            synthesise += [2 / period * (cos - sin), -2 / period * sin, -2 / period * cos]
    return torch.stack(analyse), torch.stack(of_kernel), torch.stack(synthesise, dim=1)


def convolve_rows_above(
    x: Float[Tensor, "batch inputs padded width"],
    weight: Float[Tensor, "outputs inputs rows taps"],
    bias: Float[Tensor, " outputs"],
    transform: Matrices,
) -> Float[Tensor, "batch outputs height width"]:
    """Return the convolution of `x` (rows already padded, columns not) with `weight`, same width, channels last.

    >>> x, w, b = torch.randn(2, 3, 6, 8), torch.randn(4, 3, 2, 5), torch.randn(4)
    >>> fast = convolve_rows_above(x, w, b, tuple(m.float() for m in make_matrices(8, 5)))
    >>> torch.allclose(fast, F.conv2d(x, w, b, padding=(0, 2)), atol=1e-4)
    True
    """
    analyse, of_kernel, synthesise = transform
    groups, taps = of_kernel.shape
    outputs, inputs, rows, _ = weight.shape
    batch, _, padded, _ = x.shape
    # weights: (frequency, output, row, input), which is the channels-last form of a grouped kernel of one column
    kernel = (of_kernel @ weight.permute(3, 0, 2, 1).reshape(taps, -1)).view(groups * outputs, rows, 1, inputs)
    # the synthesis column of frequency 0 is the constant 1/period: a bias there is a bias everywhere
    shift = torch.cat([bias / synthesise[0, 0], bias.new_zeros((groups - 1) * outputs)])
    spectrum = torch.matmul(analyse, x.permute(0, 2, 3, 1))  # (batch, padded, frequency, input)
    spectrum = spectrum.reshape(batch, padded, 1, groups * inputs).permute(0, 3, 1, 2)
    product = F.conv2d(spectrum, kernel.permute(0, 3, 1, 2), shift, groups=groups)
    product = product.permute(0, 2, 3, 1).reshape(batch, padded - rows + 1, groups, outputs)
    return torch.matmul(synthesise, product).permute(0, 3, 1, 2)
