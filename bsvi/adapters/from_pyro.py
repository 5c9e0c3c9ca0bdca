"""``bsvi.adapters.pyro``: a model and its guide written in Pyro, with local latents."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, biject_to

from bsvi.adapters.needs import library
from bsvi.adapters.pyro_traces import PyroSite, as_torch, find_leaf, list_samples, name_family, sum_per_row, trace_run
from bsvi.adapters.site_model import SiteModel, check_callable, gather_modules
from bsvi.adapters.sites import FAMILIES, Site, describe_site
from bsvi.evaluation.hmc import find_support
from bsvi.evaluation.side_by_side import find_single
from bsvi.examples import count, first, repeat


def pyro(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    module: nn.Module | Iterable[nn.Module] | None = None,
) -> "PyroVAE":
    """A model and a guide of Pyro as a ``bsvi.Model``, for evaluation and training.

    Both are called with x: ``model(x)`` for a tensor, ``model(*x)`` for a tuple, ``model(**x)`` for a dict, with as many rows as
    there are draws and examples. Each latent of the model has a site in the guide that depends on x alone, of a family that
    ``bsvi.wrap`` knows (Normal, LogNormal, Gamma, Beta, Dirichlet and others). Its prior, and what is observed, may be
    anything. Log-probabilities are those without ``poutine.scale`` and the scale of subsampling plates.

    Args:
        model: the model, a function, a method or a module
        guide: its guide
        module: the networks of both; found where they are modules or methods of modules

    Returns:
        The model; its latents are those of the guide side by side, in the guide's order.
    """
    library("pyro", "pyro")
    check_callable(model=model, guide=guide)
    return PyroVAE(model, guide, gather_modules(module, model, guide))


class PyroVAE(SiteModel):
    """What ``bsvi.adapters.pyro`` returns; ``distributions(lambda_)`` has the guide's sites by name."""

    def __init__(self, model: Callable[..., Any], guide: Callable[..., Any], modules: nn.ModuleList) -> None:
        super().__init__()
        self.modules_, self.model, self.guide = modules, model, guide

    def find_posterior(self, x: Any) -> dict[str, Distribution]:
        """The guide's sites, each with one distribution for every example."""
        sites = self._guide_sites(x)
        if not self.layouts:
            self._check_independent(x, sites)
            self._check_model(x, sites)
        return {name: as_torch(site["fn"]) for name, site in sites.items()}

    def log_prior(self, z: Tensor, x: Any) -> Tensor:
        """ln p(z), the sum over the latent sites of the model; it runs up to the last of them."""
        latents = self.structured(z)
        trace = trace_run(self.model, x, latents, set(latents))
        return _sum(trace, list(latents), [], len(z), z)

    def log_lik(self, x: Any, z: Tensor) -> Tensor:
        """ln p(x|z), the sum over the observed sites of the model."""
        latents = self.structured(z)
        return _sum(trace_run(self.model, x, latents), None, list(latents), len(z), z)

    def prior(self, x: Any) -> Distribution | None:
        """p(z) of each example where the latents are independent and of known families, for AIS; else None."""
        q = self.posterior(self.encode(x))
        return self.multiply_priors(q.event_shape[0], x, count(x))

    def find_priors(self, x: Any, sites: tuple[Site, ...]) -> dict[str, Distribution] | None:
        """The model's own sites, where none of them changes with another."""
        rows, found = count(x), list[list[Tensor]]()
        priors: dict[str, Distribution] = {}
        for value in (0.0, 1.0):
            latents = {site.name: site.place(value, rows, first(x)) for site in sites}
            trace = trace_run(self.model, x, latents, set(latents))
            for site in sites:
                made = as_torch(trace.nodes[site.name]["fn"])
                if made is None or trace.nodes[site.name]["mask"] is not None:
                    return None
                priors[site.name] = made if made.batch_shape else made.expand(torch.Size((rows,)))
            found.append([describe_site(name, made, rows)[1] for name, made in priors.items()])
        return priors if all(map(torch.equal, *found)) else None

    def _guide_sites(self, x: Any, data: Mapping[str, Tensor] | None = None) -> dict[str, PyroSite]:
        """The guide's latent sites, checked: one distribution for each example and site."""
        trace = trace_run(self.guide, x, data or {})
        self._check_parameters(trace)
        rows, found = count(x), {}
        for name, site in list_samples(trace).items():
            shape = tuple(site["fn"].batch_shape)
            if as_torch(site["fn"]) is None:
                raise ValueError(
                    f"site {name!r} of the guide is {name_family(site['fn'])}; bsvi.adapters.pyro takes "
                    f"{', '.join(family.__name__ for family in FAMILIES)}; choose one of these, or sum the site out"
                )
            if shape != (rows,):
                raise ValueError(
                    f"site {name!r} of the guide has the batch shape {shape}, and not one row for each of {rows} examples; "
                    "latents shared by examples are not taken, further dimensions belong into to_event, and a plate must "
                    "not subsample: give minibatches as x"
                )
            found[name] = site
        if not found:
            raise ValueError("the guide samples nothing; it needs a site for each latent of the model")
        return found

    def _check_independent(self, x: Any, sites: dict[str, PyroSite]) -> None:
        """ValueError where the guide of one latent depends on another latent."""
        moved = {}
        for name, site in sites.items():
            coordinates = biject_to(find_support(as_torch(site["fn"])))
            moved[name] = coordinates(coordinates.inv(site["value"].detach()) + 1.0)
        for name, site in self._guide_sites(x, moved).items():
            old, new = (describe_site(name, as_torch(one["fn"]), count(x))[1] for one in (sites[name], site))
            if not torch.allclose(old, new):
                raise ValueError(
                    f"site {name!r} of the guide depends on the latents before it; bsvi.adapters.pyro takes guides that depend "
                    "on x alone; let it depend on x, or write a posterior family of your own for bsvi.VAE(..., posterior=...)"
                )

    def _check_model(self, x: Any, sites: dict[str, PyroSite]) -> None:
        """ValueError where the model lacks a latent of the guide, where it cannot be, or where it takes so many rows only."""
        latents = {name: site["value"].detach() for name, site in sites.items()}
        trace = trace_run(self.model, x, latents)
        self._check_parameters(trace)
        samples = list_samples(trace)
        for name, site in sites.items():
            if name not in samples:
                raise ValueError(f"site {name!r} of the guide is not in the model; give both the same names")
            support = find_single(find_support(samples[name]["fn"]))
            if support.event_dim == 0 and not support.check(site["value"].detach()).all():
                prior = name_family(samples[name]["fn"])
                raise ValueError(
                    f"site {name!r} is {name_family(site['fn'])} in the guide and {prior} in the model, which is 0 outside of "
                    f"{support}; give the guide a family that stays inside"
                )
        rows, like = count(x), next(iter(latents.values()))
        with torch.no_grad():
            _sum(trace, None, [], rows, like)
            try:  # as many rows as there are draws and examples
                twice = trace_run(self.model, repeat(x, 2), repeat(latents, 2))
                _sum(twice, None, [], 2 * rows, like)
            except (RuntimeError, ValueError) as error:
                raise ValueError(
                    f"the model runs with {rows} rows of x and not with {2 * rows}; let its plates and shapes follow len(x) "
                    f"({str(error).partition(chr(10))[0]})"
                ) from None

    def _check_parameters(self, trace: Any) -> None:
        """ValueError where a parameter of Pyro's store is none of the networks': it would neither move nor be trained."""
        held = {id(parameter) for parameter in self.parameters()}
        for name, site in trace.nodes.items():
            if site["type"] == "param" and id(find_leaf(site["value"])) not in held:
                raise ValueError(
                    f"the parameter {name!r} is in Pyro's store and in no module of the model; give module=..., the networks of "
                    "model and guide, make it a PyroParam of one, or call pyro.clear_param_store() if it is another model's"
                )


def _sum(trace: Any, names: list[str] | None, without: list[str], rows: int, like: Tensor) -> Tensor:
    """The log-probabilities of the sites named, or of all but some, one number for each row."""
    from pyro.distributions.util import scale_and_mask

    total = like.new_zeros(rows)
    for name, site in list_samples(trace).items():
        if name in without or (names is not None and name not in names):
            continue
        if not site["is_observed"]:
            raise ValueError(
                f"site {name!r} of the model has no partner in the guide, nor is it observed; give the guide a site of "
                "that name, or sum it out"
            )
        value = scale_and_mask(site["fn"].log_prob(site["value"], *site["args"], **site["kwargs"]), 1.0, site["mask"])
        total = total + sum_per_row(name, value, site, rows)
    return total
