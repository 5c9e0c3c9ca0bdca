"""Distributions as lambda and back: the unconstrained parameters of each latent site, in named blocks.

A Gaussian's are its mean and log-variance, so that a rate means the same as for bsvi's own family. A positive parameter's is its
logarithm. Logarithms are clamped to [-20, 20]: any lambda is a proposal, so this is safe for the bound.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributions as D
from torch.distributions import Distribution, Independent, TransformedDistribution, biject_to, constraints
from torch.nn.functional import hardtanh

from bsvi.draws import rsample_and_log_prob
from bsvi.evaluation.hmc import find_support
from bsvi.evaluation.side_by_side import SideBySide
from bsvi.model import DiagonalGaussian, Shape

# what each parameter of a family becomes: as it is, its logarithm, twice its logarithm, or both parts of a triangle
REAL = (D.Normal, D.MultivariateNormal, D.Laplace, D.Gumbel)  # families on all real numbers
FAMILIES: dict[type, dict[str, str]] = {
    D.Normal: {"loc": "real", "scale": "log_variance"},
    D.LogNormal: {"loc": "real", "scale": "log_variance"},
    D.MultivariateNormal: {"loc": "real", "scale_tril": "triangle"},
    D.Laplace: {"loc": "real", "scale": "log"},
    D.Gumbel: {"loc": "real", "scale": "log"},
    D.Gamma: {"concentration": "log", "rate": "log"},
    D.InverseGamma: {"concentration": "log", "rate": "log"},
    D.Beta: {"concentration1": "log", "concentration0": "log"},
    D.Kumaraswamy: {"concentration1": "log", "concentration0": "log"},
    D.Dirichlet: {"concentration": "log"},
    D.Exponential: {"rate": "log"},
    D.Weibull: {"scale": "log", "concentration": "log"},
    D.HalfNormal: {"scale": "log"},
}


@dataclass(frozen=True)
class Site:
    """One latent site: its family, the shapes of its parameters without the batch, and that of its z."""

    name: str
    family: type
    shapes: tuple[tuple[int, ...], ...]
    event: tuple[int, ...]
    transforms: tuple[Any, ...] = ()  # without parameters, such as a sigmoid

    @property
    def blocks(self) -> dict[str, int]:
        """Name and size of each block of lambda."""
        sizes: dict[str, int] = {}
        for (name, kind), shape in zip(FAMILIES[self.family].items(), self.shapes, strict=True):
            size = torch.Size(shape).numel()
            if kind == "triangle":
                width = shape[-1]
                sizes |= {
                    f"{self.name}.log_variance": size // width,
                    f"{self.name}.below": size * (width - 1) // (2 * width),
                }
            else:
                sizes[f"{self.name}.{'log_variance' if kind == 'log_variance' else name}"] = size
        return {name: size for name, size in sizes.items() if size}

    def make(self, lambda_: Tensor) -> Distribution:
        """The site's distribution, of the batch shape that the user gave it."""
        values, at = [], 0
        for kind, shape in zip(FAMILIES[self.family].values(), self.shapes, strict=True):
            size = torch.Size(shape).numel()
            size = size * (shape[-1] + 1) // (2 * shape[-1]) if kind == "triangle" else size
            values.append(_value(kind, lambda_[:, at : at + size], shape))
            at += size
        base = _build(self.family, values)
        return TransformedDistribution(base, list(self.transforms)) if self.transforms else base

    def place(self, value: float, rows: int, like: Tensor) -> Tensor:
        """A z for each row: the one whose coordinates without bounds all have this value."""
        lambda_ = torch.zeros(rows, sum(self.blocks.values()), device=like.device)
        coordinates: Any = biject_to(find_support(self.make(lambda_)))
        shape = coordinates.inverse_shape(torch.Size((rows, *self.event)))
        return coordinates(torch.full(shape, value, device=like.device))

    def flat(self, lambda_: Tensor) -> Distribution:
        """The same with batch shape (batch,); a Gaussian as bsvi's own, which is faster."""
        if self.family is D.Normal and len(self.event) == 1 and not self.transforms:
            return DiagonalGaussian(lambda_)
        q = self.make(lambda_)
        return Independent(q, len(q.batch_shape) - 1)


def describe_site(name: str, q: Any, batch: int) -> tuple[Site, Tensor]:
    """A site and its lambda (batch, parameters); TypeError or ValueError that says what to return instead."""
    if not isinstance(q, Distribution):
        raise TypeError(
            f"posterior(x) must return a torch Distribution or a dict of them, got {type(q).__name__} for {name}; return "
            "Normal(mean, log_sd.exp()), or Normal(mean, (0.5 * log_variance).exp())"
        )
    base: Any = q
    transforms: tuple[Any, ...] = ()
    while isinstance(base, Independent):
        base = base.base_dist
    if type(base) is TransformedDistribution and all(map(is_fixed, base.transforms)):
        base, transforms = base.base_dist, tuple(base.transforms)
        while isinstance(base, Independent):
            base = base.base_dist
    if type(base) not in FAMILIES:
        raise TypeError(
            f"posterior(x) gave {type(base).__name__} for {name}, whose parameters are not known here; there are "
            f"{', '.join(kind.__name__ for kind in FAMILIES)}; for another family use bsvi.VAE(..., posterior=...)"
        )
    if q.batch_shape[:1] != (batch,):
        raise ValueError(
            f"posterior(x) must have one distribution per example, batch shape ({batch}, ...), got {tuple(q.batch_shape)} for "
            f"{name}; do not sum or average over the batch"
        )
    values = [getattr(base, parameter) for parameter in FAMILIES[type(base)]]
    for (parameter, kind), value in zip(FAMILIES[type(base)].items(), values, strict=True):
        if kind in ("log", "log_variance") and not value.is_meta and (value < 0).any():
            raise ValueError(
                f"posterior(x) gave {type(base).__name__} for {name} with a {parameter} below 0; if it is a logarithm, give its "
                "exponential: Normal(mean, log_sd.exp()), or Normal(mean, (0.5 * log_variance).exp())"
            )
    shapes = tuple(tuple(value.shape[1:]) for value in values)
    parts = [_unconstrain(kind, value) for kind, value in zip(FAMILIES[type(base)].values(), values, strict=True)]
    site = Site(name, type(base), shapes, tuple(q.batch_shape[1:] + q.event_shape), transforms)
    return site, torch.cat([part.reshape(batch, -1) for part in parts], -1)


class Joint(Distribution):
    """The product of all sites' q over one flat z, (batch, latents); ``sites`` has their distributions by name."""

    arg_constraints = {}  # noqa: RUF012 (torch's own attribute)

    def __init__(self, sites: tuple[Site, ...], lambda_: Tensor) -> None:
        self.blocks = {name: size for site in sites for name, size in site.blocks.items()}
        widths = [sum(site.blocks.values()) for site in sites]
        self.described, self.lambdas = sites, lambda_.split(widths, -1)
        self.parts = [site.flat(part) for site, part in zip(sites, self.lambdas, strict=True)]
        self.sizes = [torch.Size(site.event).numel() for site in sites]
        self.has_rsample = all(part.has_rsample for part in self.parts)
        super().__init__(lambda_.shape[:1], torch.Size((sum(self.sizes),)), validate_args=False)

    @property
    def sites(self) -> dict[str, Distribution]:
        """The sites' distributions by name, as torch has them."""
        return {site.name: site.make(part) for site, part in zip(self.described, self.lambdas, strict=True)}

    @property
    def support(self) -> constraints.Constraint:
        return SideBySide([find_support(part) for part in self.parts], [site.event for site in self.described])

    @property
    def mean(self) -> Tensor:
        return torch.cat([part.mean.reshape(self.batch_shape[0], -1) for part in self.parts], -1)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.rsample_and_log_prob(sample_shape)[0]

    def rsample_and_log_prob(self, sample_shape: Shape = ()) -> tuple[Tensor, Tensor]:
        """A draw and its ln q."""
        draws = [rsample_and_log_prob(part, sample_shape) for part in self.parts]
        rows = (*sample_shape, *self.batch_shape)
        return torch.cat([z.reshape(*rows, -1) for z, _ in draws], -1), _total([log_q for _, log_q in draws])

    def log_prob(self, value: Tensor) -> Tensor:
        pieces = zip(self.parts, self.described, value.split(self.sizes, -1), strict=True)
        return _total([part.log_prob(z.reshape(*z.shape[:-1], *site.event)) for part, site, z in pieces])


def _total(values: list[Tensor]) -> Tensor:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def _unconstrain(kind: str, value: Tensor) -> Tensor:
    if kind == "real":
        return value
    if kind != "triangle":
        return (2.0 if kind == "log_variance" else 1.0) * value.log()
    below = torch.tril_indices(value.shape[-1], value.shape[-1], -1, device=value.device)
    diagonal = 2.0 * value.diagonal(dim1=-2, dim2=-1).log()
    return torch.cat([diagonal.flatten(1), value[..., below[0], below[1]].flatten(1)], -1)


def _value(kind: str, lambda_: Tensor, shape: tuple[int, ...]) -> Tensor:
    if kind == "real":
        return lambda_.reshape(-1, *shape)
    if kind != "triangle":
        logarithm = hardtanh(lambda_, -20.0, 20.0).reshape(-1, *shape)
        return ((0.5 if kind == "log_variance" else 1.0) * logarithm).exp()
    width = shape[-1]
    count = torch.Size(shape).numel() // width  # numbers on the diagonals
    diagonal = (0.5 * hardtanh(lambda_[:, :count], -20.0, 20.0)).exp().reshape(-1, *shape[:-1])
    at = torch.tril_indices(width, width, -1, device=lambda_.device)
    below = diagonal.new_zeros((len(diagonal), *shape))
    below[..., at[0], at[1]] = lambda_[:, count:].reshape(-1, *shape[:-2], at.shape[1])
    return below + torch.diag_embed(diagonal)


def _build(family: type, values: list[Tensor]) -> Distribution:
    names = dict(zip(FAMILIES[family], values, strict=True))
    return family(**names, validate_args=False)


def is_fixed(transform: Any) -> bool:
    """Whether a transform has no parameters that could depend on x."""
    if isinstance(transform, D.ComposeTransform):
        return all(map(is_fixed, transform.parts))
    return not any(isinstance(value, Tensor) for value in vars(transform).values())
