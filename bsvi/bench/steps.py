"""Training steps of three methods as short hand loops: what is timed is the networks, not the library around them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bsvi import parameters
from bsvi.nets.flops import convolution_backward_flops

Freeze = Callable[[nn.Module], AbstractContextManager[None]]


def freeze(module: nn.Module) -> AbstractContextManager[None]:
    """Refinement needs the gradient of z alone: without this a compiled decoder would compute theta's at every step."""
    return parameters.freeze(parameters.find_trainable(module))


def leave_unfrozen(module: nn.Module) -> AbstractContextManager[None]:
    """A context that changes nothing: to see what `freeze` is worth."""
    return nullcontext()


def draw_z(lambda_: Tensor) -> Tensor:
    mean, log_variance = lambda_.chunk(2, dim=1)
    return mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)


def refine_lambda(decoder: nn.Module, x: Tensor, lambda_: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return lambda after `steps` gradient steps on ln p(x | z), and the first gradient, which phi learns from."""
    first = torch.zeros_like(lambda_)
    for index in range(steps):
        lambda_ = lambda_.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(decoder(x, draw_z(lambda_)).sum(), lambda_)
        first = gradient if index == 0 else first
        lambda_ = lambda_ + 0.02 * gradient / gradient.norm(dim=1, keepdim=True).clamp_min(1.0)
    return lambda_.detach(), first


def step_vae(encoder: nn.Module, decoder: nn.Module, x: Tensor, freeze: Freeze = freeze) -> None:
    """One gradient of the ELBO's likelihood term: one decoder call, theta and phi."""
    (-decoder(x, draw_z(encoder(x))).mean()).backward()


def step_svi_10(encoder: nn.Module, decoder: nn.Module, x: Tensor, freeze: Freeze = freeze) -> None:
    """SVI-10: ten refinement steps, then theta from the last draw. Eleven decoder calls."""
    _step_refined(encoder, decoder, x, freeze, steps=10, weigh_last=False)


def step_bsvi_9_sir(encoder: nn.Module, decoder: nn.Module, x: Tensor, freeze: Freeze = freeze) -> None:
    """BSVI-9-SIR: nine refinement steps, the tenth weight without one, then theta from one draw: 10 + 1 calls."""
    _step_refined(encoder, decoder, x, freeze, steps=9, weigh_last=True)


def _step_refined(
    encoder: nn.Module, decoder: nn.Module, x: Tensor, freeze: Freeze, *, steps: int, weigh_last: bool
) -> None:
    start = encoder(x)
    with freeze(decoder):
        lambda_, first = refine_lambda(decoder, x, start, steps)
        if weigh_last:
            with torch.no_grad():
                decoder(x, draw_z(lambda_))
    start.backward(-first / len(x))
    (-decoder(x, draw_z(lambda_)).mean()).backward()


STEPS = {"svi-10": step_svi_10, "bsvi-9-sir": step_bsvi_9_sir, "vae": step_vae}


def count_flops(step: Callable[..., None], encoder: nn.Module, decoder: nn.Module, x: Tensor) -> int:
    """Return the floating-point operations of one step as torch counts them (matrix products and convolutions)."""
    mapping = {torch.ops.aten.convolution_backward: convolution_backward_flops}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        step(encoder, decoder, x)
    for module in (encoder, decoder):
        module.zero_grad(set_to_none=True)
    return counter.get_total_flops()
