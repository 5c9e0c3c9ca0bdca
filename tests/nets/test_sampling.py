import pytest
import torch

from bsvi.nets import DiscretisedLogistic, PixelCNN
from bsvi.nets.sampling import ancestral_sample


def naive_sample(decoder, z, noise):
    """One full pass per pixel: what the cached form has to equal."""
    x = torch.zeros_like(noise)
    height, width = decoder.image
    with torch.no_grad():
        for row in range(height):
            for column in range(width):
                params = decoder.params(x, z)[:, :, row, column]
                x[:, :, row, column] = decoder.likelihood.sample(params, noise[:, :, row, column])
        return x, decoder.params(x, z)


@pytest.mark.parametrize("likelihood", [None, DiscretisedLogistic()], ids=["bernoulli", "logistic"])
@pytest.mark.parametrize(("image", "kernels"), [((8, 8), (3, 3)), ((6, 9), (7, 5, 3)), ((5, 4), (9, 9))])
def test_cached_sampling_equals_naive_sampling_under_the_same_noise(image, kernels, likelihood):
    decoder = PixelCNN(3, image, channels=8, kernels=kernels, likelihood=likelihood)
    for parameter in decoder.layers.parameters():
        parameter.data.mul_(2)  # away from the timid start of a fresh network
    z, noise = torch.randn(6, 3), torch.rand(6, 1, *image)
    x, params = ancestral_sample(decoder, z, noise)
    want, want_params = naive_sample(decoder, z, noise)
    assert torch.equal(x, want)
    assert torch.allclose(params, want_params, atol=1e-5, rtol=0)
    assert len(x.unique()) > 1 and not torch.equal(x[0], x[1])


@pytest.mark.slow
def test_cached_sampling_from_the_papers_decoder_gives_the_parameters_of_a_full_pass():
    decoder = PixelCNN()
    z, noise = torch.randn(4, 32), torch.rand(4, 1, 28, 28)
    x, params = ancestral_sample(decoder, z, noise)
    with torch.no_grad():
        whole = decoder.params(x, z)
    # a full pass on the finished image gives each pixel the parameter it was drawn from: by causality this is the
    # naive procedure's answer too
    assert torch.allclose(params, whole, atol=1e-5, rtol=0)
    assert torch.equal(x, decoder.likelihood.sample(whole, noise))


def test_a_generator_decides_the_sample_and_progress_counts_rows():
    decoder, z, seen = PixelCNN(3, (8, 8), channels=8, kernels=(3, 3)), torch.randn(4, 3), []
    one = decoder.sample(z, torch.Generator().manual_seed(1), progress=lambda done, rows: seen.append((done, rows)))
    again = decoder.sample(z, torch.Generator().manual_seed(1))
    other = decoder.sample(z, torch.Generator().manual_seed(2))
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert seen == [(row, 8) for row in range(1, 9)]
    assert not one.requires_grad


def test_samples_have_the_decoders_probabilities():
    # a 1x2 image: p(x1), p(x2 | x1) can be read off full passes and compared with frequencies
    decoder = PixelCNN(2, (1, 2), channels=4, kernels=(3,))
    z, n = torch.randn(1, 2), 40_000
    x = decoder.sample(z.expand(n, -1)).flatten(1)
    for first in (0.0, 1.0):
        for second in (0.0, 1.0):
            want = decoder(torch.tensor([[[[first, second]]]]), z).exp().item()
            assert ((x[:, 0] == first) & (x[:, 1] == second)).double().mean() == pytest.approx(want, abs=0.015)
