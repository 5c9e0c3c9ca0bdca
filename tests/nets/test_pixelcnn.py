"""The decoder: causal (T12), conditioned on z everywhere, and equal to a plain port of the architecture."""

import copy

import pytest
import torch

from bsvi.bench.port import PlainPixelCNN
from bsvi.nets import DIGITS_KERNELS, PAPER_KERNELS, SMALL_KERNELS, DiscretisedLogistic, PixelCNN

SIZES = {
    "digits": {"image": (8, 8), "channels": 8, "kernels": DIGITS_KERNELS},
    "small 28x28": {"image": (28, 28), "channels": 8, "kernels": SMALL_KERNELS},
    "small 32x32": {"image": (32, 32), "channels": 8, "kernels": SMALL_KERNELS},
    "paper 28x28": {"image": (28, 28), "channels": 32, "kernels": PAPER_KERNELS},
    "paper 32x32": {"image": (32, 32), "channels": 32, "kernels": PAPER_KERNELS},
}
PIXELS = {"digits": 64, "small 28x28": 24, "small 32x32": 24, "paper 28x28": 4, "paper 32x32": 3}
ALL = [*SIZES, "odd"]
SIZES["odd"], PIXELS["odd"] = {"image": (5, 7), "channels": 16, "kernels": (5, 3)}, 35  # also not square, spectral


def build(name, latent=3, **more):
    return PixelCNN(latent=latent, **SIZES[name], **more)


def chosen(height, width, count):
    """Pixels spread over the image, with its corners and the ends of a row among them."""
    total = height * width
    edge = [0, 1, width - 1, width, total - 2, total - 1]
    if count >= total:
        return range(total)
    return sorted({*edge[: max(2, count // 2)], *torch.linspace(1, total - 1, count).long().tolist()})[:count]


def leaks(decoder, count):
    """Pixels whose change reaches an earlier output or itself, and pixels that reach nothing later."""
    height, width = decoder.image
    x = (torch.rand(1, 1, height, width) < 0.5).float()
    z = torch.randn(1, decoder.latent)
    pixels = chosen(height, width, count)
    changed = x.repeat(len(pixels) + 1, 1, 1, 1).flatten(1)
    for index, pixel in enumerate(pixels):
        changed[index, pixel] = 1 - changed[index, pixel]
    with torch.no_grad():
        out = decoder.params(changed.view(-1, 1, height, width), z.expand(len(changed), -1)).flatten(1)
    base, outs = out[-1], out[:-1]
    early = [p for p, o in zip(pixels, outs, strict=True) if not torch.equal(o[: p + 1], base[: p + 1])]
    last = height * width - 1
    silent = [p for p, o in zip(pixels, outs, strict=True) if p < last and torch.equal(o[p + 1 :], base[p + 1 :])]
    return early, silent


@pytest.mark.parametrize("name", ALL)
def test_changing_a_pixel_changes_no_output_up_to_it_bit_by_bit(name):
    assert leaks(build(name), PIXELS[name]) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paper 28x28", "paper 32x32"])
@pytest.mark.parametrize("spectral", [True, False, None])
def test_the_papers_decoder_is_causal_at_many_pixels(name, spectral):
    assert leaks(build(name, spectral=spectral), 60) == ([], [])


@pytest.mark.parametrize("name", ALL)
def test_the_gradient_of_an_output_stops_before_its_pixel(name):
    decoder = build(name)
    height, width = decoder.image
    x = torch.rand(1, 1, height, width, requires_grad=True)
    out = decoder.params(x, torch.randn(1, 3)).flatten()
    for pixel in chosen(height, width, min(PIXELS[name], 6)):
        (grad,) = torch.autograd.grad(out[pixel], x, retain_graph=True)
        grad = grad.flatten()
        assert not grad[pixel:].any()
        assert pixel == 0 or grad[pixel - (1 if pixel % width else width)] != 0  # its left or upper neighbour


@pytest.mark.parametrize("name", ALL)
def test_z_reaches_every_pixel(name):
    decoder = build(name)
    x = torch.zeros(1, 1, *decoder.image)
    with torch.no_grad():
        difference = decoder.params(x, torch.ones(1, 3)) - decoder.params(x, -torch.ones(1, 3))
    assert (difference != 0).all()


def test_a_leaking_decoder_is_caught():
    decoder = build("digits")
    honest = decoder.layers[1].above
    decoder.layers[1].above = lambda v: honest(v.roll(-2, 2))  # one row more than the two layers' shifts give
    assert leaks(decoder, 64)[0]


def gradients(decoder, x, z):
    z = z.clone().requires_grad_()
    value = decoder(x, z)
    names, params = zip(*decoder.named_parameters(), strict=True)
    return value, dict(zip(("z", *names), torch.autograd.grad(value.sum(), [z, *params]), strict=True))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("batch", [2, 5])  # fewer and more images than latents: both forms of the first layer
@pytest.mark.parametrize("name", ["digits", "small 28x28", "paper 28x28"])
def test_values_and_gradients_are_those_of_the_plain_port(name, batch, dtype, tolerance):
    port = PlainPixelCNN(latent=3, **SIZES[name], shift="before").to(dtype)
    decoder = build(name)
    decoder.load_state_dict(port.state_dict())
    decoder.to(dtype)
    x = (torch.rand(batch, 1, *SIZES[name]["image"]) < 0.3).to(dtype)
    z = torch.randn(batch, 3, dtype=dtype)
    want, want_grads = gradients(port, x, z)
    got, got_grads = gradients(decoder, x, z)
    assert torch.allclose(got, want, rtol=tolerance / 10, atol=0)
    assert want_grads.keys() == got_grads.keys()
    for key, grad in want_grads.items():
        assert (got_grads[key] - grad).abs().max() <= tolerance * max(1.0, grad.abs().max()), key


def test_the_two_shifts_differ_in_the_first_row_and_column_only_by_what_the_docstring_says():
    after = PlainPixelCNN(3, (8, 8), 8, (3,), shift="after")
    before = PlainPixelCNN(3, (8, 8), 8, (3,), shift="before")
    before.load_state_dict(after.state_dict())
    layer, other = after.layers[0], before.layers[0]
    v = torch.randn(1, 5, 8, 8)
    shifted = after.layers[0].one_above(layer.vertical(layer.pad_above(v)))[:, :, :-1]
    padded = other.vertical(other.pad_above(other.one_above(v)[:, :, :-1]))
    assert not shifted[:, :, 0].any()
    assert torch.allclose(padded[:, :, 0], layer.vertical.bias[None, :, None].expand(1, 16, 8))
    assert torch.allclose(shifted[:, :, 1:], padded[:, :, 1:], atol=1e-6)


def test_the_spectral_form_equals_the_direct_one():
    direct = PixelCNN(2, (9, 11), channels=6, kernels=(9, 7, 5, 3), spectral=False).double()
    fast = PixelCNN(2, (9, 11), channels=6, kernels=(9, 7, 5, 3), spectral=True).double()
    fast.load_state_dict(direct.state_dict())
    x, z = torch.rand(3, 1, 9, 11, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    assert torch.allclose(fast.params(x, z), direct.params(x, z), atol=1e-13)


def test_kernels_wider_than_the_image_work():
    decoder = PixelCNN(2, (4, 3), channels=4, kernels=(9, 9), spectral=True)
    reference = PixelCNN(2, (4, 3), channels=4, kernels=(9, 9), spectral=False)
    reference.load_state_dict(decoder.state_dict())
    x, z = torch.rand(3, 1, 4, 3), torch.randn(3, 2)
    assert torch.allclose(decoder.params(x, z), reference.params(x, z), atol=1e-6)


def test_an_image_does_not_depend_on_its_batch_mates():
    decoder = build("small 28x28", latent=8)
    x, z = (torch.rand(12, 1, 28, 28) < 0.5).float(), torch.randn(12, 8)
    whole = decoder(x, z)
    parts = torch.cat([decoder(x[i : i + 1], z[i : i + 1]) for i in range(12)])
    assert torch.allclose(whole, parts, atol=1e-4, rtol=0)
    assert not any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in decoder.modules())


def test_the_log_likelihood_is_float64_and_the_scale_is_trained():
    decoder = build("digits", likelihood=DiscretisedLogistic())
    value = decoder(torch.randint(256, (4, 1, 8, 8)) / 255, torch.randn(4, 3))
    value.sum().backward()
    assert value.shape == (4,) and value.dtype == torch.float64
    assert decoder.likelihood.rho.grad != 0
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in decoder.parameters())


def test_a_copy_and_a_cast_work_and_nothing_but_parameters_is_saved():
    decoder = PixelCNN(2, (8, 8), channels=16, kernels=(5, 5))
    decoder.compile_with(lambda log_lik: lambda x, z: log_lik(x, z))
    twin = copy.deepcopy(decoder)
    assert twin._compiled is None and decoder._compiled is not None
    assert set(decoder.state_dict()) == {name for name, _ in decoder.named_parameters()}
    x, z = torch.rand(3, 1, 8, 8), torch.randn(3, 2)
    assert torch.equal(twin(x, z), decoder(x, z))
    assert twin.double().layers[1].analyse.dtype == torch.float64


def test_users_mistakes_are_one_line():
    decoder = build("digits")
    with pytest.raises(ValueError, match=r"takes images of shape .*8, 8.*got \(2, 1, 28, 28\)"):
        decoder(torch.zeros(2, 1, 28, 28), torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"z must be \(2, 3\)"):
        decoder(torch.zeros(2, 1, 8, 8), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="kernel must be odd"):
        PixelCNN(2, (8, 8), kernels=(4,))
    with pytest.raises(ValueError, match="needs channels, maps >= 1 and a kernel"):
        PixelCNN(2, (8, 8), kernels=())
