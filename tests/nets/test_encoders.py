import pytest
import torch

from bsvi.nets import Bernoulli, DiscretisedLogistic, MLPDecoder, MLPEncoder, PixelCNN, ResNetEncoder


@pytest.mark.parametrize(("image", "left"), [((8, 8), 1), ((28, 28), 9), ((32, 32), 16), ((29, 13), 3)])
def test_the_residual_encoder_halves_any_image_three_times(image, left):
    encoder = ResNetEncoder(latent=5, image=image, channels=(4, 6, 6))
    assert encoder.heads.in_features == 6 * left
    out = encoder(torch.rand(3, 1, *image))
    assert out.shape == (3, 10)


def test_the_residual_encoder_has_the_papers_sizes():
    encoder = ResNetEncoder()
    convolutions = [m for m in encoder.modules() if isinstance(m, torch.nn.Conv2d)]
    assert {c.out_channels for c in convolutions} == {64}
    assert [c.stride for c in convolutions if c.kernel_size == (2, 2)] == [(2, 2)] * 3
    assert sum(isinstance(m, torch.nn.BatchNorm2d) for m in encoder.modules()) == 6
    assert encoder.heads.out_features == 64


def test_batch_statistics_are_used_in_training_only():
    encoder = ResNetEncoder(latent=2, image=(8, 8), channels=(4, 4, 4))
    x = torch.rand(6, 1, 8, 8)
    encoder(x)
    assert not torch.allclose(encoder(x)[:1], encoder(x[:1]), atol=1e-4)
    encoder.eval()
    assert torch.allclose(encoder(x)[:1], encoder(x[:1]), atol=1e-5)


def test_an_image_too_small_to_halve_is_refused():
    with pytest.raises(ValueError, match="at least 8x8 for its 3 halvings"):
        ResNetEncoder(image=(4, 8))


def test_the_fully_connected_pair_has_two_hidden_layers_of_200():
    encoder, decoder = MLPEncoder(), MLPDecoder()
    for net, ends in ((encoder.net, (784, 100)), (decoder.net, (50, 784))):
        sizes = [(m.in_features, m.out_features) for m in net if isinstance(m, torch.nn.Linear)]
        assert sizes == [(ends[0], 200), (200, 200), (200, ends[1])]


@pytest.mark.parametrize("likelihood", [Bernoulli(), DiscretisedLogistic()])
def test_the_fully_connected_decoder_gives_the_likelihood_of_its_map(likelihood):
    decoder = MLPDecoder(latent=3, image=(4, 5), hidden=8, likelihood=likelihood)
    x, z = torch.randint(2, (6, 1, 4, 5)).float(), torch.randn(6, 3)
    assert torch.equal(decoder(x, z), likelihood.log_prob(x, decoder.params(x, z)))
    assert decoder(x, z).dtype == torch.float64
    drawn = decoder.sample(z, torch.Generator().manual_seed(0))
    assert drawn.shape == x.shape and torch.equal(drawn, decoder.sample(z, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("image", [(8, 8), (28, 28), (32, 32)])
def test_every_network_builds_and_runs_on_another_device(image):
    with torch.device("meta"):  # any hard-coded device would mix with meta and fail
        x, z = torch.empty(5, 1, *image), torch.empty(5, 4)
        nets = [ResNetEncoder(4, image), MLPEncoder(4, image)]
        decoders = [PixelCNN(4, image), PixelCNN(4, image, likelihood=DiscretisedLogistic()), MLPDecoder(4, image)]
    for net in nets:
        assert net(x).device.type == "meta" and net(x).shape == (5, 8)
    for decoder in decoders:
        assert decoder(x, z).device.type == "meta" and decoder(x, z).shape == (5,)
        few = decoder(x[:2], z[:2])
        assert few.device.type == "meta"
    moved = PixelCNN(4, image, channels=16, kernels=(5, 5)).to("meta")
    assert moved(x, z).device.type == "meta"
