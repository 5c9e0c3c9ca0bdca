"""Models whose ln p(x) and p(z|x) are exact, and ways to draw from them with noise that the test chooses."""

import math
import sys

import torch
from torch import Tensor, nn

from bsvi import DiagonalGaussian

FLOAT = torch.float64


class PPCA(nn.Module):
    """Probabilistic PCA, z ~ N(0, I), x ~ N(W z + b, sigma^2 I): a Model without our base class.

    The encoder is a table row (mean, log-variance) shared by all examples: ``start`` sets it.
    """

    def __init__(self, latent: int = 2, visible: int = 3, sigma: float = 0.7, seed: int = 3) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        self.W = nn.Parameter(torch.randn(visible, latent, generator=rng, dtype=FLOAT))
        self.b = nn.Parameter(torch.randn(visible, generator=rng, dtype=FLOAT))
        self.sigma = sigma
        self.phi = nn.Parameter(torch.zeros(2 * latent, dtype=FLOAT))
        self.x = torch.randn(visible, generator=rng, dtype=FLOAT) * 1.5
        self.calls = 0

    @property
    def store_key(self) -> str:  # all but the count of calls
        return str({name: value for name, value in vars(self).items() if isinstance(value, float)})

    def encode(self, x: Tensor) -> Tensor:
        return self.phi.expand(len(x), -1)

    def posterior(self, lambda_: Tensor) -> DiagonalGaussian:
        return DiagonalGaussian(lambda_)

    def log_prior(self, z: Tensor) -> Tensor:
        return -0.5 * (z.square() + math.log(2 * math.pi)).sum(-1)

    def log_lik(self, x: Tensor, z: Tensor) -> Tensor:
        self.calls += 1
        residual = (x - z @ self.W.T - self.b) / self.sigma
        return -0.5 * (residual.square() + math.log(2 * math.pi * self.sigma**2)).sum(-1)

    def kl(self, q: DiagonalGaussian) -> Tensor:
        return 0.5 * (q.mean.square() + q.variance - q.variance.log() - 1.0).sum(-1)

    def exact_posterior(self, x: Tensor) -> torch.distributions.MultivariateNormal:
        W = self.W.detach()
        precision = W.T @ W / self.sigma**2 + torch.eye(W.shape[1], dtype=FLOAT)
        covariance = torch.linalg.inv(precision)
        mean = (x - self.b.detach()) @ W @ covariance / self.sigma**2
        return torch.distributions.MultivariateNormal(mean, covariance)

    def exact_log_p(self, x: Tensor) -> Tensor:
        W = self.W.detach()
        covariance = W @ W.T + self.sigma**2 * torch.eye(len(W), dtype=FLOAT)
        return torch.distributions.MultivariateNormal(self.b.detach(), covariance).log_prob(x)

    def start(self, mean: Tensor, log_var: Tensor) -> "PPCA":
        with torch.no_grad():
            self.phi.copy_(torch.cat([mean, log_var.expand_as(mean)]))
        return self

    def start_wide(self) -> "PPCA":
        """Posterior mean, and wider than the posterior in every direction: the weights are bounded, so that the mean
        of R over N draws is Gaussian to the accuracy the tests need."""
        posterior = self.exact_posterior(self.x)
        widest = torch.linalg.eigvalsh(posterior.covariance_matrix).max()
        return self.start(posterior.mean, widest.log() + 1.4)

    def start_mean_field(self) -> "PPCA":
        """The best diagonal Gaussian: posterior mean, variances 1 / diag(precision)."""
        posterior = self.exact_posterior(self.x)
        return self.start(posterior.mean, -posterior.precision_matrix.diagonal().log())

    def batch(self, n: int) -> Tensor:
        return self.x.expand(n, -1)


def mean_and_error(values: Tensor) -> tuple[float, float]:
    values = values.detach().double()
    return values.mean().item(), (values.std() / math.sqrt(len(values))).item()


class Counted(nn.Module):
    """A decoder that counts its calls and the rows it was given."""

    store_key = "counted"  # for a store: the counts make it no other model

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder, self.calls, self.rows = decoder, 0, 0

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        if not being_tried():
            self.calls, self.rows = self.calls + 1, self.rows + len(x)
        return self.decoder(x, z)


def being_tried() -> bool:
    """Whether bsvi.checks.trial is asking: two passes of a few examples, once for a model, which no method counts."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_try_twice":
            return True
        frame = frame.f_back
    return False


class BernoulliDecoder(nn.Module):
    """Fully connected, for tests that want a network."""

    def __init__(self, latent: int = 4, pixels: int = 20, hidden: int = 32) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(latent, hidden), nn.Tanh(), nn.Linear(hidden, pixels))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return -nn.functional.binary_cross_entropy_with_logits(self.net(z), x, reduction="none").sum(-1)
