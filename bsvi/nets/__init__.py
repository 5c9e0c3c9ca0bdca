"""Networks and likelihoods: the paper's residual encoder and gated PixelCNN decoder, and a fully connected pair."""

from bsvi.nets.decoder import Decoder
from bsvi.nets.likelihoods import Bernoulli, DiscretisedLogistic
from bsvi.nets.mlp import MLPDecoder, MLPEncoder
from bsvi.nets.pixelcnn import DIGITS_KERNELS, PAPER_KERNELS, SMALL_KERNELS, PixelCNN
from bsvi.nets.resnet import ResNetEncoder

__all__ = [
    "DIGITS_KERNELS",
    "PAPER_KERNELS",
    "SMALL_KERNELS",
    "Bernoulli",
    "Decoder",
    "DiscretisedLogistic",
    "MLPDecoder",
    "MLPEncoder",
    "PixelCNN",
    "ResNetEncoder",
]
