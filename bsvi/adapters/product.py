"""The priors of several latent sites as one distribution of the flat z."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, constraints

from bsvi.adapters.sites import Site
from bsvi.evaluation.hmc import find_support
from bsvi.evaluation.side_by_side import SideBySide, find_single
from bsvi.examples import Nested, count, first
from bsvi.model import Shape


class Product(Distribution):
    """Independent priors of several sites over one flat z."""

    arg_constraints = {}  # noqa: RUF012 (torch's own attribute)

    def __init__(self, sites: tuple[Site, ...], parts: list[Distribution], rows: int | None) -> None:
        self.sites, self.parts = sites, parts
        self.sizes = [torch.Size(site.event).numel() for site in sites]
        self.has_rsample = all(part.has_rsample for part in parts)
        shape = torch.Size(() if rows is None else (rows,))
        super().__init__(shape, torch.Size((sum(self.sizes),)), validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return SideBySide([find_support(part) for part in self.parts], [site.event for site in self.sites])

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self._join([part.rsample(torch.Size(sample_shape)) for part in self.parts])

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        return self._join([part.sample(torch.Size(sample_shape)) for part in self.parts])

    def _join(self, draws: list[Tensor]) -> Tensor:
        lead = [draw.ndim - len(site.event) for draw, site in zip(draws, self.sites, strict=True)]
        return torch.cat([draw.reshape(*draw.shape[:n], -1) for draw, n in zip(draws, lead, strict=True)], -1)

    def log_prob(self, value: Tensor) -> Tensor:
        pieces = zip(self.parts, self.sites, value.split(self.sizes, -1), strict=True)
        return sum(part.log_prob(z.reshape(*z.shape[:-1], *site.event)) for part, site, z in pieces)  # type: ignore[return-value]


def multiply_priors(sites: tuple[Site, ...], priors: dict[str, Any], rows: int | None) -> Distribution:
    """The prior of the flat z of these sites, or of each of ``rows`` examples; ValueError where names or shapes differ."""
    if set(priors) != {site.name for site in sites}:
        raise ValueError(
            f"the prior has the sites {', '.join(map(str, priors))}, the posterior {', '.join(s.name for s in sites)}; "
            "name the same"
        )
    whole = [_fit(priors[site.name], site, rows) for site in sites]
    return whole[0] if len(sites) == 1 and len(sites[0].event) == 1 else Product(sites, whole, rows)


def check_priors(sites: tuple[Site, ...], priors: dict[str, Any], rows: int | None, x: Nested) -> None:
    """ValueError where a site can be where its prior has no density, not even one of zero; it is tried far from 0 too."""
    multiply_priors(sites, priors, rows)  # names and shapes
    for site in sites:
        p = _fit(priors[site.name], site, rows)
        if not all(_has_density(p, site.place(value, count(x), first(x))) for value in (0.0, -8.0, 8.0)):
            raise ValueError(
                f"{site.name} is {site.family.__name__} in the posterior and {type(strip_independent(p)).__name__} in the prior, "
                f"which has no density outside of {find_single(find_support(p))}; give the posterior a family that stays inside"
            )


def _has_density(p: Distribution, z: Tensor) -> bool:
    try:
        with torch.no_grad():
            return not p.log_prob(z).isnan().any()
    except ValueError:  # torch's own, of several lines
        return False


def strip_independent(p: Distribution) -> Distribution:
    """The distribution inside ``Independent``."""
    while isinstance(p, Independent):
        p = p.base_dist
    return p


def _fit(p: Any, site: Site, rows: int | None) -> Distribution:
    """The site's prior as a distribution of one z, or of one for each of ``rows`` examples."""
    if not isinstance(p, Distribution):
        raise TypeError(f"prior must give a torch Distribution for {site.name}, got {type(p).__name__}")
    p = strip_independent(p)
    own = site.event[: len(site.event) - len(p.event_shape)]
    wanted = torch.Size((*(() if rows is None else (rows,)), *own))
    try:
        p = p if p.batch_shape == wanted else p.expand(wanted)
        fits = tuple(p.event_shape) == site.event[len(own) :]
    except (RuntimeError, NotImplementedError):
        fits = False
    if not fits:
        raise ValueError(
            f"the prior of {site.name} has shape {tuple(p.batch_shape + p.event_shape)}, where its z has {tuple(site.event)}; "
            "give one number, or one for each latent (and a function of x where it depends on the example)"
        )
    return Independent(p, len(own)) if own else p
