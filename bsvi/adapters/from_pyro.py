"""``bsvi.adapters.pyro``: a model and its guide written in Pyro, with local latents and a Gaussian guide."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bsvi.adapters.needs import library
from bsvi.adapters.pyro_traces import Site, find_gaussian, find_leaf, list_samples, name_family, sum_per_row, trace_run
from bsvi.examples import count, first
from bsvi.model import DiagonalGaussian


def pyro(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    module: nn.Module | list[nn.Module] | None = None,
) -> "PyroVAE":
    """A model and a guide of Pyro as a ``bsvi.Model``, for evaluation and training.

    Both are called with x: ``model(x)`` for a tensor, ``model(*x)`` for a tuple, ``model(**x)`` for a dict, with as many rows as
    there are draws and examples. Each latent of the model has a Gaussian in the guide that depends on x alone. Its prior, and
    what is observed, may be anything. Log-probabilities are those without ``poutine.scale`` and the scale of subsampling plates.

    Args:
        model: the model, a function, a method or a module
        guide: its guide
        module: the networks of both; found where they are modules or methods of modules

    Returns:
        The model; its latents are those of the guide side by side, in the guide's order.
    """
    library("pyro", "pyro")
    given = module if isinstance(module, list) else [] if module is None else [module]
    return PyroVAE(model, guide, nn.ModuleList([*given, *_owners(model, guide)]))


class PyroVAE(nn.Module):
    """What ``bsvi.adapters.pyro`` returns."""

    def __init__(self, model: Callable[..., Any], guide: Callable[..., Any], modules: nn.ModuleList) -> None:
        super().__init__()
        self.modules_, self.model, self.guide = modules, model, guide
        self.shapes: dict[str, torch.Size] = {}  # of one example's latents, by site; known once the guide has run

    def encode(self, x: Any) -> Tensor:
        """Means and log-variances of the guide's sites, side by side."""
        sites = self._guide_sites(x)
        if not self.shapes:
            self._check_independent(x, sites)
            self.shapes = {name: find_gaussian(site["fn"]).loc.shape[1:] for name, site in sites.items()}
        normals = [find_gaussian(site["fn"]) for site in sites.values()]
        return _side_by_side([(normal.loc, normal.scale) for normal in normals], count(x))

    def posterior(self, lambda_: Tensor) -> DiagonalGaussian:
        """q(z; lambda) of all sites together."""
        return DiagonalGaussian(lambda_)

    def log_prior(self, z: Tensor, x: Any) -> Tensor:
        """ln p(z), the sum over the latent sites of the model; it runs up to the last of them."""
        return self._sum(self._run(x, z, stop=True), latent=True, rows=len(z), like=z)

    def prior(self, x: Any) -> DiagonalGaussian | None:
        """p(z) of each example where all latents are independent Gaussians, for AIS and closed-form KLs; else None."""
        if not self.shapes:
            self.encode(x)
        found = []
        for value in (0.0, 1.0):
            z = torch.full((count(x), sum(shape.numel() for shape in self.shapes.values())), value)
            trace = self._run(x, z.to(first(x).device), stop=True)
            normals = [find_gaussian(trace.nodes[name]["fn"]) for name in self.shapes]
            if None in normals or any(trace.nodes[name]["mask"] is not None for name in self.shapes):
                return None
            shapes = [(len(z), *shape) for shape in self.shapes.values()]
            parts = [(n.loc.expand(s), n.scale.expand(s)) for n, s in zip(normals, shapes, strict=True)]
            found.append(_side_by_side(parts, len(z)))
        return DiagonalGaussian(found[0]) if torch.equal(*found) else None

    def kl(self, q: DiagonalGaussian, x: Any) -> Tensor | None:
        """KL(q || p(z)) where the prior is Gaussian, else None."""
        p = self.prior(x)
        if p is None:
            return None
        ratio = (q.variance + (q.mean - p.mean).square()) / p.variance
        return 0.5 * (ratio - 1.0 + p.log_var - q.log_var).sum(-1)

    def log_lik(self, x: Any, z: Tensor) -> Tensor:
        """ln p(x|z), the sum over the observed sites of the model."""
        return self._sum(self._run(x, z, stop=False), latent=False, rows=len(z), like=z)

    def _guide_sites(self, x: Any, data: Mapping[str, Tensor] | None = None) -> dict[str, Site]:
        """The guide's latent sites, checked: one Gaussian for each example and site."""
        trace = trace_run(self.guide, x, data or {})
        self._check_parameters(trace)
        rows, found = count(x), {}
        for name, site in list_samples(trace).items():
            normal, shape = find_gaussian(site["fn"]), tuple(site["fn"].batch_shape)
            if normal is None:
                raise ValueError(
                    f"site {name!r} of the guide is {name_family(site['fn'])}; bsvi.adapters.pyro takes Gaussian sites, "
                    "Normal(...).to_event(1); bsvi.wrap takes other families"
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

    def _check_independent(self, x: Any, sites: dict[str, Site]) -> None:
        """ValueError where the guide of one latent depends on another latent, or the model has others."""
        moved = {name: site["value"].detach() + 1.0 for name, site in sites.items()}
        for name, site in self._guide_sites(x, moved).items():
            old, new = find_gaussian(sites[name]["fn"]), find_gaussian(site["fn"])
            if not (torch.allclose(old.loc, new.loc) and torch.allclose(old.scale, new.scale)):
                raise ValueError(
                    f"site {name!r} of the guide depends on the latents before it; bsvi.adapters.pyro takes guides that depend "
                    "on x alone; write such a guide as a posterior family of your own"
                )
        self.shapes = {name: find_gaussian(site["fn"]).loc.shape[1:] for name, site in sites.items()}
        z = torch.cat([site["value"].detach().reshape(count(x), -1) for site in sites.values()], dim=-1)
        try:
            trace = self._run(x, z, stop=False)
        finally:
            self.shapes = {}
        self._check_parameters(trace)
        if lost := [name for name in sites if name not in list_samples(trace)]:
            raise ValueError(f"site {lost[0]!r} of the guide is not in the model; give both the same names")

    def _run(self, x: Any, z: Tensor, stop: bool) -> Any:
        """The trace of the model at these latents; with ``stop`` it ends at the last of them, before the decoder."""
        if not self.shapes:
            raise ValueError("the latents of this guide are not known yet; call encode(x) first")
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = zip(self.shapes.items(), z.split(sizes, dim=-1), strict=True)
        data = {name: part.reshape(len(z), *shape) for (name, shape), part in parts}
        return trace_run(self.model, x, data, set(data) if stop else None)

    def _sum(self, trace: Any, latent: bool, rows: int, like: Tensor) -> Tensor:
        """The log-probabilities of latent or observed sites, one number for each row."""
        from pyro.distributions.util import scale_and_mask

        total = like.new_zeros(rows)
        for name, site in list_samples(trace).items():
            if (name in self.shapes) != latent:
                continue
            if not site["is_observed"]:
                raise ValueError(
                    f"site {name!r} of the model has no partner in the guide, nor is it observed; give the guide a site of "
                    "that name, or sum it out"
                )
            value = scale_and_mask(
                site["fn"].log_prob(site["value"], *site["args"], **site["kwargs"]), 1.0, site["mask"]
            )
            total = total + sum_per_row(name, value, site, rows)
        return total

    def _check_parameters(self, trace: Any) -> None:
        """ValueError where a parameter of Pyro's store is none of the networks': it would neither move nor be trained."""
        held = {id(parameter) for parameter in self.parameters()}
        for name, site in trace.nodes.items():
            if site["type"] == "param" and id(find_leaf(site["value"])) not in held:
                raise ValueError(
                    f"the parameter {name!r} is in Pyro's store and in no module of the model; give module=..., the networks of "
                    "model and guide, make it a PyroParam of one, or call pyro.clear_param_store() if it is another model's"
                )


def _side_by_side(parts: list[tuple[Tensor, Tensor]], rows: int) -> Tensor:
    """lambda: the means of all sites, then their log-variances."""
    means = [loc.reshape(rows, -1) for loc, _ in parts]
    return torch.cat([*means, *(2 * scale.log().reshape(rows, -1) for _, scale in parts)], dim=-1)


def _owners(*functions: Any) -> list[nn.Module]:
    """The modules whose methods these are; modules themselves are held as what they are."""
    found = [getattr(function, "__self__", None) for function in functions]
    return list({id(owner): owner for owner in found if isinstance(owner, nn.Module)}.values())
