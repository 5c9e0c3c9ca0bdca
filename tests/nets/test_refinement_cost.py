"""A refinement step needs the gradient of z alone: nothing may be spent on theta's there. Counted on the meta device."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from bsvi.nets import PAPER_KERNELS, PixelCNN


def count(decoder, *, theta, batch=50):
    x = torch.empty(batch, 1, 28, 28, device="meta")
    z = torch.empty(batch, 32, device="meta", requires_grad=True).clone()  # the counter's hooks want no leaf here
    wanted = [z, *decoder.parameters()] if theta else [z]
    with FlopCounterMode(display=False) as counter:
        value = decoder(x, z).sum()
        forward = counter.get_total_flops()
        torch.autograd.grad(value, wanted)
    return forward, counter.get_total_flops() - forward


def test_refinement_computes_no_weight_gradient():
    decoder = PixelCNN().to("meta")
    forward, backward = count(decoder, theta=False)
    assert backward < 1.02 * forward  # one transposed pass; a weight gradient would be another forward
    _, with_theta = count(decoder, theta=True)
    assert with_theta > 1.8 * forward


def test_the_spectral_form_halves_the_arithmetic():
    saved = count(PixelCNN(kernels=PAPER_KERNELS).to("meta"), theta=False)
    direct = count(PixelCNN(kernels=PAPER_KERNELS, spectral=False).to("meta"), theta=False)
    assert sum(saved) < 0.52 * sum(direct)
