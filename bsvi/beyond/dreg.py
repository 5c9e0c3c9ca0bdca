"""Phi's gradient with less noise for draws of the encoder's q: STL (Roeder et al. 2017) and DReG (Tucker et al. 2018).

The whole gradient of ln w(z; lambda) by lambda has two parts: through the draw z, and the score d ln q(z; lambda) / d lambda at
a fixed z. The score has mean zero under q, so with one draw it can be left out (STL). With more draws each score is
multiplied by r_i, which depends on z_i; that product is turned into a part through z_i by reparameterising once more (DReG).
"""

from functools import partial

from torch import Tensor

from bsvi.draws import Draw, full_precision
from bsvi.examples import Nested
from bsvi.model import Model, call_with_x
from bsvi.parameters import find_trainable, freeze


def path_alone(model: Model, x: Nested, lambda_: Tensor, drawn: Draw) -> Draw:
    """The draws with a ln q that reaches phi through z alone: the score of q, whose mean is zero, is left out."""
    with freeze(find_trainable(model)), full_precision():
        return Draw(drawn.z, call_with_x(model.posterior, lambda_.detach(), x).log_prob(drawn.z))


def square_weights(drawn: list[Tensor], log_w: Tensor, beta: float) -> None:
    """In backward multiply the gradient of each z_i by 1 - beta + beta r_i, where r_i is what the bound gives ln w_i.

    The score term that ``path_alone`` left out is -beta r_i d ln q(z_i; lambda) / d lambda. Reparameterised once more it is
    -beta r_i (1 - r_i) (d ln w_i / d z_i) (d z_i / d lambda) in expectation. With beta = 1 this leaves r_i^2.
    """
    if not log_w.requires_grad:
        return
    shares: list[Tensor] = []

    def keep(gradient: Tensor) -> None:
        total = gradient.sum(0)  # the r_i sum to 1, so this is the scale of the loss; no weight at all gives NaN
        shares[:] = (gradient / total).nan_to_num(0.0, 0.0, 0.0).split([len(z) for z in drawn])

    def scale(gradient: Tensor, call: int) -> Tensor:
        r = shares[call].view(*shares[call].shape, *(1,) * (gradient.ndim - 2))
        return gradient * (1 - beta + beta * r).to(gradient)

    log_w.register_hook(keep)
    for call, z in enumerate(drawn):
        if z.requires_grad:
            z.register_hook(partial(scale, call=call))
