"""A model of named latent sites, each with a torch distribution: what bsvi.wrap and the Pyro adapter have in common."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, kl_divergence

from bsvi.adapters.product import multiply_priors, strip_independent
from bsvi.adapters.sites import Joint, Site, describe_site
from bsvi.examples import Nested, count

ALONE = "z"  # the name of the only site of a posterior that is no dict


def gather_modules(module: Any, *functions: Any) -> nn.ModuleList:
    """The networks given, one or several, and those whose methods the functions are; TypeError for what is none."""
    given = [] if module is None else list(module) if isinstance(module, Iterable) and not _is_one(module) else [module]
    if wrong := [type(part).__name__ for part in given if not isinstance(part, nn.Module)]:
        raise TypeError(
            f"module= must be a torch.nn.Module or a list of them, got {wrong[0]}; give the networks themselves"
        )
    owners = (getattr(function, "__self__", None) for function in functions)
    held = [*given, *(owner for owner in owners if isinstance(owner, nn.Module))]
    return nn.ModuleList({id(part): part for part in held}.values())


def check_callable(**functions: Any) -> None:
    """TypeError, by its name, for what should be a function and is none."""
    for name, function in functions.items():
        if not callable(function):
            raise TypeError(f"{name} must be a function, got {type(function).__name__}; give what is called with x")


def _is_one(module: Any) -> bool:
    """Whether it is one network, or nothing that could be a list of them."""
    return isinstance(module, nn.Module | str | bytes | Mapping)


class Layout(NamedTuple):
    """The sites of a posterior, and whether it is one distribution that is no dict."""

    sites: tuple[Site, ...]
    single: bool

    @property
    def latents(self) -> int:
        return sum(torch.Size(site.event).numel() for site in self.sites)


class SiteModel(nn.Module):
    """lambda are the unconstrained parameters of all sites, and z is flat inside.

    A subclass says how q(z|x) and the sites' priors are found, and gives ``log_prior`` and ``log_lik``.
    """

    @cached_property
    def layouts(self) -> dict[int, Layout]:
        """The layout of each width of lambda, as ``encode`` has seen them; no part of what the model is."""
        return {}

    def find_posterior(self, x: Nested) -> Any:
        """q(z|x): a Distribution of batch shape (batch, ...), or a dict of them."""
        raise NotImplementedError

    def find_priors(self, x: Nested, sites: tuple[Site, ...]) -> dict[str, Any] | None:
        """The prior of each site; None where it is not known, or depends on another site."""
        raise NotImplementedError

    def encode(self, x: Nested) -> Tensor:
        q = self.find_posterior(x)
        named = q if isinstance(q, dict) else {ALONE: q}
        if not named:
            raise ValueError("posterior(x) returned an empty dict; give at least one site")
        described = [describe_site(name, site, count(x)) for name, site in named.items()]
        lambda_ = torch.cat([part for _, part in described], -1)
        layout = Layout(tuple(site for site, _ in described), not isinstance(q, dict))
        if lambda_.shape[1] not in self.layouts and not lambda_.is_meta:
            self.check_sites(x, layout.sites)
        if self.layouts.setdefault(lambda_.shape[1], layout) != layout:
            raise ValueError(
                "posterior(x) returned other families or shapes than before, with as many parameters; return the same for all x"
            )
        return lambda_

    def check_sites(self, x: Nested, sites: tuple[Site, ...]) -> None:
        """Raise, with what to do, where sites that were not seen before do not go with their priors."""

    def posterior(self, lambda_: Tensor) -> Joint:
        return Joint(self._layout_of(lambda_).sites, lambda_)

    def distributions(self, lambda_: Tensor) -> Any:
        """q as torch distributions, in the structure that it was given in."""
        made = self.posterior(lambda_).sites
        return made[ALONE] if self._layout_of(lambda_).single else made

    def structured(self, z: Tensor) -> Any:
        """The flat z (rows, latents) as a tensor or a dict, like what the posterior is."""
        layout = self._layout_for(z.shape[-1])
        parts = z.split([torch.Size(site.event).numel() for site in layout.sites], -1)
        named = {site.name: part.reshape(-1, *site.event) for site, part in zip(layout.sites, parts, strict=True)}
        return named[ALONE] if layout.single else named

    def multiply_priors(self, latents: int, x: Nested, rows: int | None) -> Distribution | None:
        """The prior of a flat z of so many numbers, or of each of ``rows`` examples."""
        sites = self._layout_for(latents).sites
        priors = self.find_priors(x, sites)
        return None if priors is None else multiply_priors(sites, priors, rows)

    def kl(self, q: Joint, x: Nested = None) -> Tensor | None:
        """KL(q || p(z)), (batch,), or None where a site has no closed form."""
        priors = self.find_priors(x, q.described)
        if priors is None:
            return None
        values: list[Tensor] = []
        for name, made in q.sites.items():
            p = strip_independent(priors[name])
            if len(p.event_shape) != len(made.event_shape):
                return None
            try:
                values.append(kl_divergence(made, p.expand(made.batch_shape)).reshape(made.batch_shape[0], -1).sum(-1))
            except NotImplementedError:
                return None
        return torch.stack(values).sum(0)

    def _layout_of(self, lambda_: Tensor) -> Layout:
        if lambda_.shape[-1] not in self.layouts:
            raise ValueError(
                f"lambda with {lambda_.shape[-1]} parameters came from elsewhere; call encode(x) before posterior(lambda_)"
            )
        return self.layouts[lambda_.shape[-1]]

    def _layout_for(self, latents: int) -> Layout:
        layout = next((one for one in self.layouts.values() if one.latents == latents), None)
        if layout is None:
            raise ValueError(f"z with {latents} numbers came from elsewhere; call encode(x) first")
        return layout
