"""The prior as something to draw from: given, the model's own, or a unit Gaussian, and compared with its log_prior."""

from collections.abc import Callable

import torch
from torch.distributions import Distribution, Independent, Normal

from bsvi.draws import log_prior
from bsvi.evaluation.evaluate import encode_detached
from bsvi.examples import Nested, count, first, take
from bsvi.model import Model, takes_x

Prior = Distribution | Callable[..., Distribution]


def find_prior(model: Model, x: Nested, prior: Prior | None) -> Distribution | None:
    """The prior given, or VAE's own: a distribution, or a function or module, perhaps of x, that returns one."""
    own = getattr(model, "prior", None) if prior is None else prior
    if callable(own) and not isinstance(own, Distribution):
        own = own(x) if takes_x(own, 0) else own()
    if prior is not None and not isinstance(own, Distribution):
        raise TypeError(f"prior must be a torch Distribution, or a function that returns one, got {type(own).__name__}")
    if isinstance(own, Distribution) and own.batch_shape not in ((), (count(x),)):
        raise ValueError(
            f"the prior must be a distribution of one z, or of each of the {count(x)} examples, got batch shape "
            f"{tuple(own.batch_shape)}; wrap it in torch.distributions.Independent(..., 1)"
        )
    return own if isinstance(own, Distribution) else None


def resolve_prior(model: Model, x: Nested, shape: torch.Size, prior: Prior | None) -> Distribution:
    """A distribution of one z, or of each example's, that can be drawn from and is the model's prior: checked, not believed."""
    found = find_prior(model, x, prior)
    if found is None:
        zeros = torch.zeros(shape, dtype=encode_detached(model, take(x, slice(1))).dtype, device=first(x).device)
        found = Independent(Normal(zeros, zeros + 1.0), len(shape))
    device = first(x).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        z = found.sample(torch.Size(() if found.batch_shape else (3,))).to(device)
    some = take(x, torch.arange(len(z)) % count(x))
    if not torch.allclose(found.log_prob(z).double(), log_prior(model, z, some).double(), rtol=1e-3, atol=1e-3):
        raise ValueError(
            "ais must draw from the prior, and model.log_prior is not the density of "
            f"{'the unit Gaussian' if found.__class__ is Independent else type(found).__name__}; give prior=..."
        )
    return found
