import torch
from torch.autograd import gradgradcheck

from bsvi.nets import DiscretisedLogistic, PixelCNN
from bsvi.nets.gate import gate


def plain(pre, more=None):
    first, second = (pre if more is None else pre + more).chunk(2, dim=1)
    return torch.tanh(first) * torch.sigmoid(second)


def test_gate_has_the_value_and_gradient_of_tanh_times_sigmoid():
    for dtype, tolerance in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
        for memory_format in (torch.contiguous_format, torch.channels_last):
            pre = (4 * torch.randn(2, 6, 3, 5, dtype=dtype)).contiguous(memory_format=memory_format)
            more = torch.randn_like(pre)
            for inputs in ([pre], [pre, more]):
                inputs = [value.clone().requires_grad_() for value in inputs]
                weight = torch.randn(2, 3, 3, 5, dtype=dtype)
                ours, theirs = gate(*inputs), plain(*inputs)
                assert torch.allclose(ours, theirs, atol=tolerance)
                got = torch.autograd.grad((ours * weight).sum(), inputs)
                want = torch.autograd.grad((theirs * weight).sum(), inputs)
                assert all(torch.allclose(a, b, atol=tolerance) for a, b in zip(got, want, strict=True))


def test_gate_is_finite_at_extreme_inputs_and_leaves_its_input_alone():
    pre = torch.tensor([1e4, -1e4, -1e4, 1e4]).view(2, 2, 1, 1).requires_grad_()
    before = pre.detach().clone()
    out = gate(pre)
    (grad,) = torch.autograd.grad(out.sum(), pre)
    assert torch.equal(out.flatten(), torch.tensor([0.0, -1.0])) and torch.isfinite(grad).all()
    assert torch.equal(pre, before)


def test_gate_keeps_one_tensor_for_backward():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        gate(torch.randn(2, 6, 3, 3, requires_grad=True))
    assert kept == [2 * 6 * 3 * 3]


def test_gate_can_be_differentiated_twice():
    pre = torch.randn(2, 4, 3, 2, dtype=torch.float64, requires_grad=True)
    more = torch.randn_like(pre).requires_grad_()
    assert gradgradcheck(gate, (pre,), fast_mode=True) and gradgradcheck(gate, (pre, more), fast_mode=True)


def test_the_pixelcnn_can_be_differentiated_twice():
    torch.manual_seed(0)
    for likelihood in (None, DiscretisedLogistic()):
        for batch in (2, 5):  # more images than latents take another way through the first layer
            decoder = PixelCNN(
                latent=3, image=(4, 4), channels=2, kernels=(5, 3), likelihood=likelihood, spectral=True
            ).double()
            x, z = torch.rand(batch, 1, 4, 4).round().double(), torch.randn(batch, 3, dtype=torch.float64)
            weight = decoder.layers[1].horizontal.weight

            def log_lik(z, weight, decoder=decoder, x=x):
                return torch.func.functional_call(decoder, {"layers.1.horizontal.weight": weight}, (x, z))

            assert gradgradcheck(
                log_lik, (z.requires_grad_(), weight.detach().clone().requires_grad_()), fast_mode=True
            )
