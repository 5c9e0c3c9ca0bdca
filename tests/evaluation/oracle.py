"""An exact model whose encoder can be exact too: PPCA with orthogonal columns has a diagonal posterior."""

import torch
from torch import Tensor

from bsvi.data.batches import Batch
from tests.oracles import FLOAT, PPCA


class Diagonal(PPCA):
    """ln p(x), the posterior and the encoder's gap are all known.

    The encoder gives the posterior itself, with its log-variance larger by ``wider`` and its mean off by ``shift``.
    With ``wider`` > 0 the weights are bounded.
    """

    def __init__(self, wider: float = 0.0, shift: float = 0.0, latent: int = 2, visible: int = 3) -> None:
        super().__init__(latent, visible)
        self.wider, self.shift = wider, shift
        with torch.no_grad():
            self.W.copy_(torch.linalg.qr(self.W)[0] * torch.linspace(0.8, 1.6, latent, dtype=FLOAT))

    def encode(self, x: Tensor) -> Tensor:
        posterior = self.exact_posterior(x)
        log_var = posterior.variance.log() + self.wider
        return torch.cat([posterior.mean + self.shift, log_var], dim=-1)

    def amortization_gap(self) -> float:
        """KL(q_phi || p(z|x)), the same for every x."""
        variance = self.exact_posterior(self.x).variance
        widened = 0.5 * (torch.tensor(self.wider).exp() - 1 - self.wider)
        return float((widened + 0.5 * self.shift**2 / variance).sum())

    def mean_log_p(self) -> float:
        """E ln p(x) over x of the model: minus its entropy."""
        W = self.W.detach()
        covariance = W @ W.T + self.sigma**2 * torch.eye(len(W), dtype=FLOAT)
        return -float(torch.distributions.MultivariateNormal(self.b.detach(), covariance).entropy())


def data(model: PPCA, n: int, seed: int = 5) -> Tensor:
    """n examples of the model's own distribution."""
    rng = torch.Generator().manual_seed(seed)
    W = model.W.detach()
    z = torch.randn(n, W.shape[1], generator=rng, dtype=FLOAT)
    return z @ W.T + model.b.detach() + model.sigma * torch.randn(n, len(W), generator=rng, dtype=FLOAT)


def batches(x: Tensor, size: int, backwards: bool = False) -> list[Batch]:
    """x and ids in batches of a size, in order or backwards."""
    ids = torch.arange(len(x))
    pairs = list(map(Batch, x.split(size), ids.split(size)))
    return [Batch(a.flip(0), b.flip(0)) for a, b in reversed(pairs)] if backwards else pairs
