"""``bsvi.adapters.pythae``: a trained autoencoder of pythae, where its q(z|x), p(z) and p(x|z) are known."""

import math
import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from bsvi.adapters.needs import library
from bsvi.model import LOG_2_PI, VAE

# Each has a diagonal Gaussian q and pixels that are Bernoulli or unit Gaussians; they differ in how they are trained.
GAUSSIAN = {
    "VAE",
    "BetaVAE",
    "BetaTCVAE",
    "DisentangledBetaVAE",
    "FactorVAE",
    "INFOVAE_MMD",
    "IWAE",
    "MIWAE",
    "CIWAE",
    "PIWAE",
    "VAMP",
}
WHY = {
    "AE": "it has no posterior",
    "RAE_GP": "it has no posterior",
    "RAE_L2": "it has no posterior",
    "WAE_MMD": "it has no posterior",
    "VQVAE": "its latents are discrete",
    "MSSSIM_VAE": "its reconstruction loss is no likelihood",
    "VAEGAN": "its reconstruction loss is no likelihood",
    "Adversarial_AE": "its posterior is trained without a density",
    "SVAE": "its latents lie on a sphere",
    "PoincareVAE": "its latents lie in a hyperbolic space",
    "HVAE": "its posterior is a Hamiltonian flow of random momenta",
    "RHVAE": "its posterior is a Hamiltonian flow of random momenta",
    "VAE_LinNF": "its posterior is a flow; wrap encoder, flow and decoder in a model of your own",
    "VAE_IAF": "its posterior is a flow; wrap encoder, flow and decoder in a model of your own",
}


def pythae(model: nn.Module) -> VAE:
    """A trained model of pythae as a ``bsvi.Model``; x is the tensor that its encoder takes.

    ln p(x|z) of "bce" is the Bernoulli's, of "mse" that of a Gaussian of variance one with its constant, which pythae's
    training loss leaves out. The prior is N(0, I), that of VAMP its mixture over pseudo-inputs.

    Args:
        model: one of VAE, BetaVAE, BetaTCVAE, DisentangledBetaVAE, FactorVAE, INFOVAE_MMD, IWAE, MIWAE, CIWAE, PIWAE, VAMP

    Returns:
        The model, for ``bsvi.evaluate``, ``bsvi.amortization_gap``, ``bsvi.ais`` and training.
    """
    models = library("pythae", "pythae.models")
    name = type(model).__name__
    known = next((n for n in GAUSSIAN if type(model) is getattr(models, n, None)), None)
    if known is None:
        why = WHY.get(name, "it is none of pythae's own, or its densities are not known here")
        raise ValueError(f"bsvi.adapters.pythae cannot take {name}: {why}; it takes {', '.join(sorted(GAUSSIAN))}")
    return PythaeVAE(model, with_pseudo_inputs=known == "VAMP")


class PythaeVAE(VAE):
    """What ``bsvi.adapters.pythae`` returns; ``module`` is pythae's own model."""

    def __init__(self, module: Any, with_pseudo_inputs: bool = False) -> None:
        super().__init__(module.encoder, module.decoder)
        self.module = module
        self.prior = partial(pseudo_input_prior, module) if with_pseudo_inputs else None
        self.warned = False

    def encode(self, x: Tensor) -> Tensor:
        """Mean and log-variance of q(z|x), side by side."""
        self._check(x)
        output = self.module.encoder(x)
        return torch.cat([output.embedding, output.log_covariance], dim=-1)

    def log_lik(self, x: Tensor, z: Tensor) -> Tensor:
        """ln p(x|z), with all constants."""
        mean, pixels = self.module.decoder(z)["reconstruction"].flatten(1), x.flatten(1)
        if self.module.model_config.reconstruction_loss == "bce":
            return -nn.functional.binary_cross_entropy(mean, pixels, reduction="none").sum(-1)
        return -0.5 * (mean - pixels).square().sum(-1).add(pixels.shape[-1] * LOG_2_PI)

    def _check(self, x: Tensor) -> None:
        """Warn once of grey values under "bce": what they give is no density, so ln p(x) is none, here as in pythae."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            got = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(
                f"x must be images as pythae's encoder takes them, a tensor of floats, got {got}; of pythae's own batches give "
                'batch=lambda b: b["data"], and divide bytes by 255'
            )
        if self.module.model_config.reconstruction_loss != "bce" or x.is_meta:
            return
        if (x < 0).any() or (x > 1).any():
            raise ValueError(
                f"bce needs pixels from 0 to 1, got {x.min():.3g} to {x.max():.3g}; scale them as they were for training"
            )
        if not self.warned and not ((x == 0) | (x == 1)).all():
            self.warned = True
            warnings.warn(
                "bce with grey values is no density over them, so these log-likelihoods can only be compared with each "
                "other; binarise the images for ones that others can compare with",
                stacklevel=4,
            )


def pseudo_input_prior(module: Any) -> MixtureSameFamily:
    """VAMP's p(z): the average of q(z|u) over its pseudo-inputs u (Tomczak and Welling, 2018)."""
    count = module.number_components
    pixels = module.pseudo_inputs(module.idle_input.to(next(module.parameters())))  # on its device, in its precision
    output = module.encoder(pixels.reshape(count, *module.model_config.input_dim))
    parts = Independent(Normal(output.embedding, (0.5 * output.log_covariance).exp()), 1)
    log_share = output.embedding.new_full((count,), -math.log(count))
    return MixtureSameFamily(Categorical(logits=log_share), parts)
