"""The stacks in C++ give the numbers of the layers, with every derivative, and are left out wherever they do not fit."""

import copy
from contextlib import nullcontext

import pytest
import torch

import bsvi
from bsvi.graphs import GraphSize
from bsvi.nets import Bernoulli, DiscretisedLogistic, PixelCNN
from bsvi.nets import native as native_stacks
from bsvi.system import native, runtime

pytestmark = pytest.mark.skipif(runtime.find_compiler_problem() is not None, reason="no C++ compiler")
SIZES = [((8, 8), 8, (3, 3)), ((9, 30), 16, (3,)), ((28, 28), 8, (5, 3, 3))]


def make_pair(image=(8, 8), channels=8, kernels=(3, 3), batch=5):
    """A decoder in C++, one by its layers with the same weights, images and latents."""
    torch.manual_seed(0)
    layers = PixelCNN(4, image, channels, kernels)
    compiled = copy.deepcopy(layers)
    compiled.build_native()
    return compiled, layers, torch.rand(batch, 1, *image), torch.randn(batch, 4, requires_grad=True)


def difference(one, other):
    return ((one - other).abs().max() / other.abs().max().clamp(min=1e-12)).item()


@pytest.mark.parametrize(("image", "channels", "kernels"), SIZES)
@pytest.mark.parametrize("threads", [1, 2])
def test_values_and_derivatives_are_those_of_the_layers(image, channels, kernels, threads):
    compiled, layers, x, z = make_pair(image, channels, kernels)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        slope = torch.randn_like(x)
        found = [torch.autograd.grad(d.params(x, z), [z, *d.parameters()], slope) for d in (compiled, layers)]
        of_z = torch.autograd.grad(compiled.requires_grad_(False).params(x, z), z, slope)[0]
    finally:
        torch.set_num_threads(before)
    assert difference(compiled.params(x, z), layers.params(x, z)) < 1e-5
    assert all(difference(mine, theirs) < 5e-5 for mine, theirs in zip(*found, strict=True))
    assert difference(of_z, found[1][0]) < 1e-5
    with torch.no_grad():
        assert torch.equal(compiled.params(x, z), compiled.params(x, z))


def test_second_derivatives_are_those_of_the_layers():
    compiled, layers, x, z = make_pair()
    found = []
    for decoder in (compiled, layers):
        (g,) = torch.autograd.grad(decoder(x, z).sum(), z, create_graph=True)
        found.append(torch.autograd.grad(g.square().sum(), [z, *decoder.layers.parameters()]))
    assert all(difference(mine, theirs) < 1e-4 for mine, theirs in zip(*found, strict=True))


@pytest.mark.parametrize("kind", [Bernoulli, DiscretisedLogistic])
@pytest.mark.parametrize(("image", "scale"), [((8, 8), 1.0), ((9, 30), 1.0), ((8, 8), 300.0)])
def test_slopes_are_those_of_autograd(kind, image, scale):
    """Black, white and grey pixels, also as the targets of logits; with a scale of 300 pixels are nearly impossible."""
    torch.manual_seed(0)
    decoder = PixelCNN(4, image, 8, (5, 3), likelihood=kind())
    with torch.no_grad():
        decoder.head.weight.mul_(scale)
    x = (torch.rand(6, 1, *image) * 1.6 - 0.3).clamp(0, 1).mul(255).round() / 255
    z = torch.randn(6, 4, requires_grad=True)
    want = decoder(x, z)
    (wanted,) = torch.autograd.grad(want.sum(), z)
    assert decoder.slopes(x) is None
    decoder.build_native()
    with torch.no_grad():
        value, slope = decoder.slopes(x)(z)
        alone, none = decoder.slopes(x)(z, slope=False)
    assert value.dtype == torch.float64 and not value.requires_grad
    assert difference(value, want) < 1e-5 and difference(slope, wanted) < 2e-5
    assert none is None and torch.equal(alone, value)


@pytest.mark.parametrize("kind", [Bernoulli, DiscretisedLogistic])
@pytest.mark.parametrize(("image", "channels", "kernels"), SIZES)
@pytest.mark.parametrize("threads", [1, 2])
def test_second_derivatives_of_slopes_are_those_of_double_backward(kind, image, channels, kernels, threads):
    """By z, by every weight and by the likelihood's scale, of a sum of values and slopes, against the layers in float64."""
    torch.manual_seed(0)
    layers = PixelCNN(4, image, channels, kernels, likelihood=kind())
    decoder, layers = copy.deepcopy(layers), layers.double()
    decoder.build_native()
    x = (torch.rand(3, 1, *image) * 1.6 - 0.3).clamp(0, 1).mul(255).round() / 255
    z, by_value, along = torch.randn(3, 4), torch.rand(3, dtype=torch.float64), torch.randn(3, 4)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        at = z.clone().requires_grad_()
        value, slope = decoder.slopes(x)(at)
        alone, none = decoder.slopes(x)(at, slope=False)
        found = torch.autograd.grad((by_value * value).sum() + (along * slope).sum(), [at, *decoder.parameters()])
    finally:
        torch.set_num_threads(before)
    at = z.double().requires_grad_()
    wanted_value = layers(x.double(), at)
    (wanted_slope,) = torch.autograd.grad(wanted_value.sum(), at, create_graph=True)
    total = (by_value * wanted_value).sum() + (along * wanted_slope).sum()
    wanted = torch.autograd.grad(total, [at, *layers.parameters()])
    assert difference(value, wanted_value) < 1e-6 and difference(slope, wanted_slope) < 1e-5
    assert none is None and alone.requires_grad and difference(alone, wanted_value) < 1e-6
    assert all(difference(mine, theirs) < 1e-4 for mine, theirs in zip(found, wanted, strict=True))


@pytest.mark.parametrize("kind", [Bernoulli, DiscretisedLogistic])
@pytest.mark.parametrize("method", ["svi", "bsvi", "bsvi-pi", "bsvi-sir", "bsvi-e2e", "sa-vae"])
def test_losses_and_gradients_of_a_method_are_those_of_the_layers(method, kind):
    found = []
    for compiled in (True, False):
        torch.manual_seed(1)
        model = bsvi.VAE(
            torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8)),
            PixelCNN(4, (8, 8), 8, (3, 3), likelihood=kind()),
        )
        x = torch.rand(5, 1, 8, 8).round()
        if compiled:
            model.decoder.build_native()
        objective = bsvi.objective(method, k=3, svi=bsvi.SVI(lr=0.1, max_grad_norm=1.0))
        estimate = objective(model, x)
        estimate.loss.backward()
        learned = [*model.parameters(), *objective.parameters()]
        found.append([estimate.bound, estimate.trajectory.lambda_, *(p.grad for p in learned if p.grad is not None)])
    assert all(difference(mine, theirs) < 1e-4 for mine, theirs in zip(*found, strict=True))


def test_a_kept_graph_in_cpp_takes_next_to_no_memory():
    """bsvi keeps the graphs of all draws; in C++ backward makes again what the layers would keep."""
    held = {}
    for compiled in (True, False):
        decoder = PixelCNN(4, (8, 8), 8, (3, 3))
        if compiled:
            decoder.build_native()
        model = bsvi.VAE(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8)), decoder)
        with GraphSize(True) as size:
            estimate = bsvi.objective("bsvi", k=3)(model, torch.rand(50, 1, 8, 8).round())
        assert estimate.trajectory.kept
        held[compiled] = size.bytes
    assert held[True] < held[False] / 2, held  # what is left is the last draw: no step follows it


def test_a_likelihood_that_has_no_form_in_cpp_is_left_to_torch():
    class Own(Bernoulli):
        def log_prob(self, x, params):
            return super().log_prob(x, params) / 2

    decoder = PixelCNN(4, (8, 8), 8, (3, 3), likelihood=Own())
    x, z = torch.rand(2, 1, 8, 8), torch.randn(2, 4)
    want = decoder(x, z)
    decoder.build_native()
    assert decoder.slopes(x) is None and difference(decoder(x, z), want) < 1e-5


def test_an_image_does_not_depend_on_its_batch():
    compiled, _, x, z = make_pair(batch=7)
    maps = compiled.z_maps(z)
    assert torch.equal(compiled._native(x, maps)[3:4], compiled._native(x[3:4], maps[3:4]))


def test_numbers_that_are_not_finite_stay_visible():
    compiled, _, x, z = make_pair()
    with torch.no_grad():
        z[2] = torch.nan
        params = compiled.params(x, z)
    assert params[2].isnan().any() and params[[0, 1, 3, 4]].isfinite().all()


@pytest.mark.parametrize("change", ["double", "derivative by x", "rest", "parameters"])
def test_the_layers_answer_what_does_not_fit(change, monkeypatch):
    compiled, layers, x, z = make_pair()
    monkeypatch.setattr(native_stacks.NativeStacks, "__call__", lambda *arguments: pytest.fail("C++ was called"))
    if change == "double":
        compiled, layers, x, z = compiled.double(), layers.double(), x.double(), z.double()
    elif change == "derivative by x":
        x.requires_grad_()
    with native.rest() if change == "rest" else nullcontext():
        if change == "parameters":
            weights = {name: p.detach() * 1.0 for name, p in layers.named_parameters()}
            found = torch.func.functional_call(compiled, weights, (x, z))
        else:
            found = compiled(x, z)
    torch.testing.assert_close(found, layers(x, z))


@pytest.mark.parametrize(
    ("channels", "kernels", "native_form"), [(8, (5, 3), True), (6, (3,), False), (32, (5, 5), False)]
)
def test_sizes_that_have_a_form_in_cpp(channels, kernels, native_form):
    assert PixelCNN(4, (28, 28), channels, kernels).has_native_form == native_form


def test_a_hook_or_a_subclass_is_left_to_the_layers():
    class Own(PixelCNN):
        pass

    watched = PixelCNN(4, (8, 8), 8, (3, 3))
    watched.layers[0].cross.register_forward_hook(lambda *seen: None)
    assert not watched.has_native_form and not Own(4, (8, 8), 8, (3, 3)).has_native_form


def test_code_that_gives_other_numbers_is_refused(monkeypatch):
    decoder = PixelCNN(4, (8, 8), 8, (3, 3))
    monkeypatch.setattr(native_stacks, "CLOSE", 0.0)
    with pytest.raises(native.NativeError, match="does not give the numbers of its layers"):
        decoder.build_native()
    assert decoder._native is None


def test_without_a_working_compiler_one_line_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("BSVI_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    said = []
    decoder = PixelCNN(4, (8, 8), 8, (3, 3))
    assert not native.build_native(decoder, said.append)
    assert said == ["no C++ form of the decoder: pixelcnn.cpp could not be compiled (SubprocessError)"]
    assert not list((tmp_path / "native").iterdir())  # no half of a file


def test_what_was_compiled_is_found_again(monkeypatch, tmp_path):
    monkeypatch.setenv("BSVI_CACHE_DIR", str(tmp_path))
    first, second = PixelCNN(4, (8, 8), 8, (3,)), PixelCNN(4, (8, 8), 8, (3,))
    first.build_native()
    monkeypatch.setattr(native, "compile_to", lambda *words: pytest.fail("compiled again"))
    second.build_native()
    assert len(list((tmp_path / "native").iterdir())) == 1


def test_a_copy_is_by_its_layers_until_it_is_built():
    compiled, layers, *_ = make_pair()
    assert copy.deepcopy(compiled)._native is None
    assert compiled.state_dict().keys() == layers.state_dict().keys()
