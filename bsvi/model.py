"""The model: four functions of the paper as a protocol, and VAE(encoder, decoder) which supplies them."""

import inspect
import math
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, kl_divergence

from bsvi.examples import Nested

LOG_2_PI = math.log(2 * math.pi)
Shape = torch.Size | list[int] | tuple[int, ...]


@runtime_checkable
class Model(Protocol):
    """What the library asks of a model; a class of your own with these four methods needs no base class.

    x is a tensor, or a nesting of dicts, tuples and lists of tensors that share their first axis. Where the family, the prior
    or the KL depends on x, write ``posterior(lambda_, x)``, ``log_prior(z, x)``, ``kl(q, x)``, where x has a row for each.

    Three things are optional. ``kl(q)`` returns the closed-form KL(q || prior), or None where there is none.
    ``parameters()`` is wanted by ``Recomputed`` alone. ``nan_is_missing = True`` lets x hold NaN, which is refused otherwise.
    """

    def encode(self, x: Nested) -> Tensor:
        """lambda_0 = f_phi(x), shape (batch, parameters)."""

    def posterior(self, lambda_: Tensor) -> Distribution:
        """q(z; lambda), reparameterisable, with batch shape (batch,)."""

    def log_prior(self, z: Tensor) -> Tensor:
        """ln p(z), shape (batch,)."""

    def log_lik(self, x: Nested, z: Tensor) -> Tensor:
        """ln p_theta(x | z), shape (batch,)."""


class DiagonalGaussian(Distribution):
    """q(z; lambda) with lambda = (mean, log-variance) along the last axis, as Kim et al. (2018).

    The same numbers as torch's ``Independent(Normal(...))``, with less overhead in the loop that calls it most.
    The log-variance is clamped to [-20, 20]: any lambda is a proposal, so this is safe for the bound.

    >>> q = DiagonalGaussian(torch.zeros(5, 4))
    >>> q.batch_shape, q.event_shape, q.log_prob(torch.zeros(5, 2))[0].item()
    (torch.Size([5]), torch.Size([2]), -1.837877...)
    """

    arg_constraints = {}  # noqa: RUF012 (torch's own attribute)
    has_rsample = True
    RANGE = (-20.0, 20.0)  # of the log-variance
    blocks: int | dict[str, int] = 2  # SVI clips the gradients of mean and log-variance separately

    def __init__(self, lambda_: Tensor) -> None:
        if lambda_.shape[-1] % 2:
            raise ValueError(
                f"DiagonalGaussian needs mean and log-variance, an even number of parameters, got {lambda_.shape[-1]}; "
                "let the encoder return (batch, 2 * latent), or pass another posterior"
            )
        self.loc, log_var = lambda_.chunk(2, dim=-1)
        self.log_var = nn.functional.hardtanh(log_var, *self.RANGE)  # a clamp whose backward is one kernel
        super().__init__(lambda_.shape[:-1], self.loc.shape[-1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.log_var.exp()

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.rsample_and_log_prob(sample_shape)[0]

    def rsample_and_log_prob(self, sample_shape: Shape = ()) -> tuple[Tensor, Tensor]:
        """A draw and its ln q, as ``rsample`` and ``log_prob`` would give them, cheaper: the draw's noise is known.

        Its gradient is the whole one: along the draw the quadratic form is a constant.
        """
        eps = torch.randn((*sample_shape, *self.loc.shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + (0.5 * self.log_var).exp() * eps, self._log_prob(eps.square())

    def log_prob(self, value: Tensor) -> Tensor:
        return self._log_prob((value - self.loc).square() * (-self.log_var).exp())

    def _log_prob(self, squares: Tensor) -> Tensor:
        return -0.5 * squares.sum(-1).add(self.loc.shape[-1] * LOG_2_PI) - 0.5 * self.log_var.sum(-1)

    def entropy(self) -> Tensor:
        return 0.5 * (self.log_var + 1.0 + LOG_2_PI).sum(-1)


class VAE(nn.Module):
    """A ``Model`` from your encoder and decoder.

    encoder    ``encoder(x)`` returns (batch, 2 * latent): mean and log-variance of q(z | x)
    decoder    ``decoder(x, z)`` returns ln p(x | z), shape (batch,), so that autoregressive decoders fit
    posterior  another family: a function of lambda_, or of lambda_ and x, that returns a reparameterisable Distribution of
               batch shape (batch,)
    prior      another prior than the unit Gaussian: a torch Distribution over one z, or a function (or module, if it is
               trained or has to move to a GPU) that returns one; a function of x returns one of batch shape (batch,)
    nan_is_missing  x may hold NaN: encoder and decoder leave out such values

    >>> model = VAE(nn.Linear(3, 4), lambda x, z: -(x.sum(-1) - z.sum(-1)).square())
    >>> model.encode(torch.zeros(5, 3)).shape, isinstance(model, Model)
    (torch.Size([5, 4]), True)
    """

    nan_is_missing = False

    def __init__(
        self,
        encoder: Callable[[Nested], Tensor],
        decoder: Callable[[Nested, Tensor], Tensor],
        posterior: Callable[..., Distribution] = DiagonalGaussian,
        prior: Distribution | Callable[..., Distribution] | None = None,
        nan_is_missing: bool = False,
    ) -> None:
        super().__init__()
        if not (prior is None or isinstance(prior, Distribution) or callable(prior)):
            raise TypeError(
                f"prior must be a torch Distribution, or a function that returns one, got {type(prior).__name__}"
            )
        if nan_is_missing:  # else the class says it
            self.nan_is_missing = True
        self.encoder, self.decoder, self.family, self.prior = encoder, decoder, posterior, prior

    def encode(self, x: Nested) -> Tensor:
        return self.encoder(x)

    @property
    def uses_x(self) -> bool:
        """Whether the family or the prior depends on x."""
        own = [name for name in ("posterior", "log_prior", "kl") if getattr(type(self), name) is not getattr(VAE, name)]
        given = not (self.prior is None or isinstance(self.prior, Distribution)) and takes_x(self.prior, 0)
        return given or takes_x(self.family) or any(takes_x(getattr(self, name)) for name in own)

    def posterior(self, lambda_: Tensor, x: Nested = None) -> Distribution:
        return call_with_x(self.family, lambda_, x)

    def log_prior(self, z: Tensor, x: Nested = None) -> Tensor:
        if self.prior is None:
            z = z.reshape(len(z), -1)  # a scalar latent too
            return -0.5 * z.square().sum(-1).add(z.shape[-1] * LOG_2_PI)
        return self._prior(x).log_prob(z)

    def log_lik(self, x: Nested, z: Tensor) -> Tensor:
        return self.decoder(x, z)

    def slopes(self, x: Nested) -> "Callable[..., tuple[Tensor, Tensor | None]] | None":
        """ln p(x|z) and its slope as a function of z, where the decoder knows its derivative: SVI then needs no autograd.

        It speaks of a ``DiagonalGaussian`` q of lambda itself and a unit Gaussian prior. None with any other family or prior,
        where a subclass changed one of the functions, and where the decoder does not offer it.
        """
        offered, own = getattr(self.decoder, "slopes", None), ("posterior", "log_prior", "log_lik")
        changed = any(getattr(type(self), name) is not getattr(VAE, name) for name in own) or {*own} & vars(self).keys()
        if offered is None or self.prior is not None or self.family is not DiagonalGaussian or changed:
            return None
        return offered(x)

    def kl(self, q: Distribution, x: Nested = None) -> Tensor | None:
        """KL(q || p(z)), shape (batch,), or None where no closed form is known."""
        try:
            if self.prior is not None:
                return kl_divergence(q, self._prior(x))
            cross = 0.5 * (q.variance + q.mean.square() + LOG_2_PI)  # E_q[-ln N(z; 0, I)] needs two moments only
            return cross.reshape(*q.batch_shape, -1).sum(-1) - q.entropy()
        except NotImplementedError:
            return None

    def _prior(self, x: Nested) -> Distribution:
        if self.prior is None or isinstance(self.prior, Distribution):
            return self.prior  # type: ignore[return-value]
        made = self.prior(x) if takes_x(self.prior, 0) else self.prior()
        if not isinstance(made, Distribution):
            raise TypeError(f"prior must return a torch Distribution, got {type(made).__name__}")
        return made


def call_with_x(function: Callable[..., Any], value: Any, x: Nested) -> Any:
    """``function(value)``, or ``function(value, x)`` where it asks for x."""
    return function(value, x) if takes_x(function) else function(value)


def takes_x(function: Any, before: int = 1) -> bool:
    """Whether a function asks for x after ``before`` other arguments: by an argument without a default, or one named x.

    >>> takes_x(lambda z: z), takes_x(lambda z, scale=2.0: z), takes_x(lambda z, covariates: z), takes_x(lambda z, x=None: z)
    (False, False, True, True)
    """
    if isinstance(function, type):
        return _class_takes_x(function, before)
    function = function.forward if isinstance(function, nn.Module) else function
    plain = inspect.unwrap(getattr(function, "__func__", function))
    if not hasattr(plain, "__code__"):  # a partial, an object that can be called, or nothing
        return _signature_takes_x(function, before)
    at, names = before + hasattr(function, "__func__"), plain.__code__.co_varnames[: plain.__code__.co_argcount]
    return len(names) > at and (names[at] == "x" or at < len(names) - len(plain.__defaults__ or ()))


def _signature_takes_x(function: Any, before: int) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())[before : before + 1]
    except (TypeError, ValueError):
        return False
    named = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return any(p.name == "x" or p.default is p.empty for p in named)


_class_takes_x = cache(_signature_takes_x)  # asked in every step


def uses_x(model: object) -> bool:
    """Whether the model's family, prior or KL depends on x."""
    known = getattr(model, "uses_x", None)
    if known is not None:
        return known
    return any(takes_x(getattr(model, name, None)) for name in ("posterior", "log_prior", "kl"))
