"""A fully connected pair in the style of Burda et al. (2016): two hidden layers of 200 tanh units, latent 50.

It is no network of the paper; it is here for runs that have to fit a CPU.
"""

import math
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from bsvi.nets.decoder import Decoder
from bsvi.nets.likelihoods import Weigh, weigh_bits, weigh_levels
from bsvi.nets.slopes import Slopes

tanh_backward = torch.ops.aten.tanh_backward.default


def _stack(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    )


def quick_tanh(values: Tensor) -> Tensor:
    """tanh as 2 sigmoid(2a) - 1, in half of the time; good to the last digit of 1, not of a tiny value.

    >>> quick_tanh(torch.tensor([0.0, 1.0])).sub(torch.tensor([0.0, 1.0]).tanh()).abs().max() < 1e-6
    tensor(True)
    """
    if torch.is_grad_enabled():  # one node of a graph in place of three
        return torch.tanh(values)
    return torch.sigmoid(values * 2) * 2 - 1


class MLPEncoder(nn.Module):
    """lambda_0 = (mean, log-variance) from an image.

    >>> MLPEncoder(latent=4, image=(8, 8), hidden=16)(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 8])
    """

    def __init__(self, latent: int = 50, image: tuple[int, int] = (28, 28), hidden: int = 200) -> None:
        super().__init__()
        if min(latent, hidden, *image) < 1:
            raise ValueError(f"MLPEncoder needs sizes >= 1, got latent {latent}, image {image}, hidden {hidden}")
        self.net = _stack(math.prod(image), hidden, 2 * latent)

    def forward(self, x: Float[Tensor, "batch 1 height width"]) -> Float[Tensor, "batch two_latent"]:
        """Return the mean and the log-variance side by side."""
        return self.net(x.flatten(1))


class MLPDecoder(Decoder):
    """ln p(x | z) with pixels independent given z.

    >>> decoder = MLPDecoder(latent=4, image=(8, 8), hidden=16)
    >>> decoder(torch.zeros(5, 1, 8, 8), torch.zeros(5, 4)).shape, decoder.sample(torch.zeros(5, 4)).shape
    (torch.Size([5]), torch.Size([5, 1, 8, 8]))
    """

    def __init__(
        self,
        latent: int = 50,
        image: tuple[int, int] = (28, 28),
        hidden: int = 200,
        likelihood: nn.Module | None = None,
    ) -> None:
        super().__init__(latent, image, likelihood)
        if hidden < 1:
            raise ValueError(f"MLPDecoder needs hidden >= 1, got {hidden}")
        self.net = _stack(latent, hidden, math.prod(image))

    def params(
        self, x: Float[Tensor, "batch 1 height width"], z: Float[Tensor, "batch latent"]
    ) -> Float[Tensor, "batch 1 height width"]:
        """Return the likelihood's parameter for each pixel, a function of z alone."""
        return self.net(z).view(-1, 1, *self.image)

    def slopes(self, x: Tensor) -> Slopes | None:
        """ln p(x | z) and its derivative by z, layer by layer: what autograd would give, in half the time.

        None for a subclass, for layers that are no longer those made here, and where hooks want to see the calls.
        """
        layers = [*self.net]
        as_made = type(self) is MLPDecoder and [type(layer) for layer in layers] == [nn.Linear, nn.Tanh] * 2 + [
            nn.Linear
        ]
        watched = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in self.modules())
        if not as_made or watched or {"forward", "log_lik", "params"} & vars(self).keys():
            return None
        prepare = getattr(self.likelihood, "prepare", None)
        prepared = prepare(x.flatten(1)) if prepare is not None and x.shape[1:] == (1, *self.image) else None
        if prepared is None:
            return None
        weigh, parts = prepared
        weights = [tensor for layer in layers[::2] for tensor in (layer.weight, layer.bias)]
        return Slopes(DECODE[weigh], (*weights, *parts), self.compile_step)

    @torch.no_grad()
    def sample(
        self, z: Float[Tensor, "batch latent"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "batch 1 height width"]:
        """Return one image per latent, drawn from p(x | z)."""
        params = self.net(z).view(-1, 1, *self.image)
        return self.likelihood.sample(params, self.noise(z, generator))  # type: ignore[operator]


def decode_with_slope(weigh: Weigh, z: Tensor, slope: bool, *tensors: Tensor) -> tuple[Tensor, Tensor | None]:
    """ln p(x | z) of rows of z, and its derivative by z, from the layers' weights and what the likelihood took of x."""
    w1, b1, w2, b2, w3, b3, *prepared = tensors
    first = quick_tanh(F.linear(z, w1, b1))
    second = quick_tanh(F.linear(first, w2, b2))
    value, back = weigh(F.linear(second, w3, b3), *prepared)
    if not slope:
        return value, None
    back = tanh_backward(back @ w3, second)
    return value, tanh_backward(back @ w2, first) @ w1


DECODE = {
    weigh: partial(decode_with_slope, weigh) for weigh in (weigh_bits, weigh_levels)
}  # one object each, to be compiled once
