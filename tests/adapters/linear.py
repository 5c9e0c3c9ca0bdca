"""A linear-Gaussian model whose posterior is a diagonal Gaussian, so that every bound of its exact encoder is ln p(x)."""

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal


class Linear:
    """z ~ N(0, I), x ~ N(W z + b, sigma^2 I) with orthogonal columns of W."""

    def __init__(self, latent: int = 2, visible: int = 4, sigma: float = 1.0, seed: int = 3) -> None:
        rng = torch.Generator().manual_seed(seed)
        q, _ = torch.linalg.qr(torch.randn(visible, latent, generator=rng))
        self.W = q * torch.linspace(0.8, 1.7, latent)
        self.b = torch.randn(visible, generator=rng)
        self.sigma = sigma
        self.x = self.b + 1.5 * torch.randn(20, visible, generator=rng)

    def posterior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of p(z|x)."""
        precision = 1 + self.W.square().sum(0) / self.sigma**2
        return (x - self.b) @ self.W / self.sigma**2 / precision, (1 / precision).expand(len(x), -1)

    def log_p(self) -> Tensor:
        W = self.W.double()
        covariance = W @ W.T + self.sigma**2 * torch.eye(len(W), dtype=torch.float64)
        return MultivariateNormal(self.b.double(), covariance).log_prob(self.x.double())


def agree(ours: list[float], theirs: list[float]) -> None:
    """Means of two estimators of one number, six repeats each: at 12 errors of 10 degrees of freedom, false alarms below 1e-6."""
    a, b = (torch.tensor(values, dtype=torch.float64) for values in (ours, theirs))
    error = (a.var() / len(a) + b.var() / len(b)).sqrt()
    assert abs(a.mean() - b.mean()) < 12 * error + 1e-3, (a, b)
