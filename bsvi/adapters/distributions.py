"""bsvi.wrap(): a model given by functions that return torch distributions."""

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, constraints, kl_divergence

from bsvi.adapters.sites import REAL, Joint, Site, describe_site
from bsvi.evaluation.hmc import find_support
from bsvi.examples import Nested, count
from bsvi.model import LOG_2_PI, Shape, call_with_x, takes_x

ALONE = "z"  # the name of the only site of a posterior that is no dict


def wrap(
    posterior: Callable[[Nested], Any],
    log_lik: Callable[[Nested, Any], Tensor],
    prior: Any = None,
    module: nn.Module | Iterable[nn.Module] | None = None,
    log_prior: Callable[..., Tensor] | None = None,
    nan_is_missing: bool = False,
) -> "Wrapped":
    """A ``Model`` from functions of torch distributions.

    Args:
        posterior: ``posterior(x)`` returns q(z | x), a Distribution of batch shape (batch, ...), or a dict of them, one for
            each latent site. What follows the batch belongs to one z, with or without ``Independent``.
        log_lik: ``log_lik(x, z)`` returns ln p(x | z), (batch,); z is a tensor, or a dict like the posterior's.
        prior: a Distribution or a dict of them; or a function, of nothing or of x, that returns one. Without it every site
            is a unit Gaussian.
        module: the networks that these functions use, so that they are trained, moved and saved.
        log_prior: ``log_prior(z)`` or ``log_prior(z, x)``, (batch,), in place of ``prior``: for sites that depend on each other.
        nan_is_missing: x may hold NaN, which the functions leave out.

    Returns:
        The model. Its ``distributions(lambda_, x)`` gives refined parameters back as torch distributions.

    Example:
        >>> from torch.distributions import Normal
        >>> net = nn.Linear(3, 2)
        >>> model = wrap(
        ...     posterior=lambda x: Normal(net(x), 0.5),
        ...     log_lik=lambda x, z: Normal(z.sum(-1, keepdim=True), 1.0).log_prob(x).sum(-1),
        ...     module=net,
        ... )
        >>> model.encode(torch.zeros(5, 3)).shape, model.distributions(model.encode(torch.zeros(5, 3))).batch_shape
        (torch.Size([5, 4]), torch.Size([5, 2]))
    """
    if prior is not None and log_prior is not None:
        raise ValueError("wrap got prior and log_prior, which say the same; give one of them")
    return Wrapped(posterior, log_lik, prior, module, log_prior, nan_is_missing)


class Layout(NamedTuple):
    """The sites of a posterior, and whether it is one distribution that is no dict."""

    sites: tuple[Site, ...]
    single: bool

    @property
    def latents(self) -> int:
        return sum(torch.Size(site.event).numel() for site in self.sites)


class Wrapped(nn.Module):
    """What ``bsvi.wrap`` returns: lambda are the unconstrained parameters of all sites, and z is flat inside."""

    given_functions = ("posterior_given", "log_lik_given", "prior_given", "log_prior_given")
    nan_is_missing = False

    def __init__(
        self,
        posterior: Callable[[Nested], Any],
        log_lik: Callable[[Nested, Any], Tensor],
        prior: Any,
        module: nn.Module | Iterable[nn.Module] | None,
        log_prior: Callable[..., Tensor] | None,
        nan_is_missing: bool,
    ) -> None:
        super().__init__()
        if nan_is_missing:
            self.nan_is_missing = True
        self.posterior_given, self.log_lik_given, self.prior_given, self.log_prior_given = (
            posterior,
            log_lik,
            prior,
            log_prior,
        )
        held = [] if module is None else [module] if isinstance(module, nn.Module) else list(module)
        owners = (getattr(function, "__self__", None) for function in (posterior, log_lik, prior, log_prior))
        held += [owner for owner in owners if isinstance(owner, nn.Module)]  # of methods that were given
        self.held = nn.ModuleList({id(part): part for part in held}.values())

    @cached_property
    def layouts(self) -> dict[int, Layout]:
        """The layout of each width of lambda, as ``encode`` has seen them; no part of what the model is."""
        return {}

    @property
    def uses_x(self) -> bool:
        """Whether the prior depends on x."""
        given = self.prior_given if self.log_prior_given is None else self.log_prior_given
        return callable(given) and takes_x(given, 0 if self.log_prior_given is None else 1)

    def encode(self, x: Nested) -> Tensor:
        q = self.posterior_given(x)
        named = q if isinstance(q, dict) else {ALONE: q}
        if not named:
            raise ValueError("posterior(x) returned an empty dict; give at least one site")
        described = [describe_site(name, site, count(x)) for name, site in named.items()]
        sites = tuple(site for site, _ in described)
        lambda_ = torch.cat([part for _, part in described], -1)
        layout = Layout(sites, not isinstance(q, dict))
        if self.layouts.setdefault(lambda_.shape[1], layout) != layout:
            raise ValueError(
                "posterior(x) returned other families or shapes than before, with as many parameters; return the same for all x"
            )
        self._check_prior(sites)
        return lambda_

    def posterior(self, lambda_: Tensor) -> Joint:
        return Joint(self._layout_of(lambda_).sites, lambda_)

    def distributions(self, lambda_: Tensor) -> Any:
        """q as torch distributions, in the structure that posterior(x) has."""
        made = self.posterior(lambda_).sites
        return made[ALONE] if self._layout_of(lambda_).single else made

    def log_lik(self, x: Nested, z: Tensor) -> Tensor:
        return self.log_lik_given(x, self.structured(z))

    def structured(self, z: Tensor) -> Any:
        """The flat z (rows, latents) as a tensor or a dict, like what posterior(x) returns."""
        layout = self._layout_for(z.shape[-1])
        parts = z.split([torch.Size(site.event).numel() for site in layout.sites], -1)
        named = {site.name: part.reshape(-1, *site.event) for site, part in zip(layout.sites, parts, strict=True)}
        return named[ALONE] if layout.single else named

    def log_prior(self, z: Tensor, x: Nested = None) -> Tensor:
        if self.log_prior_given is not None:
            return call_with_x(self.log_prior_given, self.structured(z), x)
        if self.prior_given is None:
            return -0.5 * z.square().sum(-1).add(z.shape[-1] * LOG_2_PI)
        return self._flat_prior(z.shape[-1], x, len(z) if self.uses_x else None).log_prob(z)

    def prior(self, x: Nested) -> Distribution | None:
        """The prior of the flat z, of batch shape () or, where it depends on x, (batch,): what AIS draws from."""
        if self.log_prior_given is not None or self.prior_given is None:
            return None
        q = self.posterior(self.encode(x))
        return self._flat_prior(q.event_shape[0], x, count(x) if self.uses_x else None)

    def kl(self, q: Joint, x: Nested = None) -> Tensor | None:
        """KL(q || p(z)), (batch,), or None where a site has no closed form."""
        if self.log_prior_given is not None:
            return None
        values: list[Tensor] = []
        for name, made in q.sites.items():
            p = torch.distributions.Normal(0.0, 1.0) if self.prior_given is None else _bare(self._priors(x)[name])
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

    def _check_prior(self, sites: tuple[Site, ...]) -> None:
        for site in sites:
            bounded = site.family not in REAL or site.transforms
            if bounded and self.prior_given is None and self.log_prior_given is None:
                raise ValueError(
                    f"{site.name} is a {site.family.__name__}, and without prior= it would have a unit Gaussian's; give prior=..."
                )

    def _priors(self, x: Nested) -> dict[str, Distribution]:
        given = self.prior_given
        if callable(given) and not isinstance(given, Distribution):
            given = given(x) if takes_x(given, 0) else given()
        return given if isinstance(given, dict) else {ALONE: given}

    def _flat_prior(self, latents: int, x: Nested, rows: int | None) -> Distribution:
        sites = self._layout_for(latents).sites
        priors = self._priors(x)
        if set(priors) != {site.name for site in sites}:
            raise ValueError(
                f"the prior has the sites {', '.join(map(str, priors))}, the posterior {', '.join(s.name for s in sites)}; "
                "name the same"
            )
        whole = [_one_z(priors[site.name], site, rows) for site in sites]
        return whole[0] if len(sites) == 1 and len(sites[0].event) == 1 else Product(sites, whole, rows)


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
        each = [_innermost(find_support(part)) for part in self.parts]
        for site, one in zip(self.sites, each, strict=True):
            if one.event_dim:
                raise ValueError(
                    f"{site.name} has the support {one}, and chains know no coordinates for it beside other sites; use evaluate, "
                    "or a model of this site alone"
                )
        return constraints.cat([constraints.independent(one, 1) for one in each], dim=-1, lengths=self.sizes)

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


def _one_z(p: Any, site: Site, rows: int | None) -> Distribution:
    """The site's prior as a distribution of one z, or of one for each of ``rows`` examples."""
    if not isinstance(p, Distribution):
        raise TypeError(f"prior must give a torch Distribution for {site.name}, got {type(p).__name__}")
    p = _bare(p)
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


def _bare(p: Distribution) -> Distribution:
    while isinstance(p, Independent):
        p = p.base_dist
    return p


def _innermost(support: Any) -> Any:
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support
