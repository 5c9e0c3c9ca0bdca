"""bsvi.wrap(): a model given by functions that return torch distributions."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from bsvi.adapters.product import check_priors
from bsvi.adapters.site_model import ALONE, SiteModel, check_callable, gather_modules
from bsvi.adapters.sites import REAL, Site
from bsvi.examples import Nested, count
from bsvi.model import LOG_2_PI, call_with_x, takes_x


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
        >>> import torch
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
    check_callable(posterior=posterior, log_lik=log_lik, **({} if log_prior is None else {"log_prior": log_prior}))
    return Wrapped(posterior, log_lik, prior, module, log_prior, nan_is_missing)


class Wrapped(SiteModel):
    """What ``bsvi.wrap`` returns."""

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
        self.held = gather_modules(module, posterior, log_lik, prior, log_prior)

    @property
    def uses_x(self) -> bool:
        """Whether the prior depends on x."""
        given = self.prior_given if self.log_prior_given is None else self.log_prior_given
        return callable(given) and takes_x(given, 0 if self.log_prior_given is None else 1)

    def find_posterior(self, x: Nested) -> Any:
        return self.posterior_given(x)

    def find_priors(self, x: Nested, sites: tuple[Site, ...]) -> dict[str, Any] | None:
        if self.log_prior_given is not None:
            return None
        given = self.prior_given
        if given is None:
            return {site.name: Normal(0.0, 1.0) for site in sites}
        if callable(given) and not isinstance(given, Distribution):
            given = given(x) if takes_x(given, 0) else given()
        return given if isinstance(given, dict) else {ALONE: given}

    def log_lik(self, x: Nested, z: Tensor) -> Tensor:
        return self.log_lik_given(x, self.structured(z))

    def log_prior(self, z: Tensor, x: Nested = None) -> Tensor:
        if self.log_prior_given is not None:
            return call_with_x(self.log_prior_given, self.structured(z), x)
        if self.prior_given is None:
            return -0.5 * z.square().sum(-1).add(z.shape[-1] * LOG_2_PI)
        prior: Any = self.multiply_priors(z.shape[-1], x, len(z) if self.uses_x else None)
        return prior.log_prob(z)

    def prior(self, x: Nested) -> Distribution | None:
        """The prior of the flat z, of batch shape () or, where it depends on x, (batch,): what AIS draws from."""
        if self.log_prior_given is not None or self.prior_given is None:
            return None
        q = self.posterior(self.encode(x))
        return self.multiply_priors(q.event_shape[0], x, count(x) if self.uses_x else None)

    def check_sites(self, x: Nested, sites: tuple[Site, ...]) -> None:
        if self.log_prior_given is not None:
            return
        for site in sites:
            if self.prior_given is None and (site.family not in REAL or site.transforms):
                raise ValueError(
                    f"{site.name} is a {site.family.__name__}, and without prior= it would have a unit Gaussian's; give prior=..."
                )
        if self.prior_given is not None:
            check_priors(sites, self.find_priors(x, sites) or {}, count(x) if self.uses_x else None, x)
