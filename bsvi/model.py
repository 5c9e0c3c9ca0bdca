"""The model: four functions of the paper as a protocol, and VAE(encoder, decoder) which supplies them."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, kl_divergence

LOG_2_PI = math.log(2 * math.pi)


@runtime_checkable
class Model(Protocol):
    """What the library asks of a model; a class of your own with these four methods needs no base class.

    Two things are optional. ``kl(q)`` returns the closed-form KL(q || prior), or None where there is none.
    ``parameters()`` is wanted by ``Recomputed`` alone.
    """

    def encode(self, x: Tensor) -> Tensor:
        """lambda_0 = f_phi(x), shape (batch, parameters)."""

    def posterior(self, lambda_: Tensor) -> Distribution:
        """q(z; lambda), reparameterisable, with batch shape (batch,)."""

    def log_prior(self, z: Tensor) -> Tensor:
        """ln p(z), shape (batch,)."""

    def log_lik(self, x: Tensor, z: Tensor) -> Tensor:
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
    blocks = 2  # SVI clips the gradients of mean and log-variance separately

    def __init__(self, lambda_: Tensor) -> None:
        if lambda_.shape[-1] % 2:
            raise ValueError(
                f"DiagonalGaussian needs mean and log-variance, an even number of parameters, got {lambda_.shape[-1]}; "
                "let the encoder return (batch, 2 * latent), or pass another posterior"
            )
        self.loc, log_var = lambda_.chunk(2, dim=-1)
        self.log_var = nn.functional.hardtanh(log_var, -20.0, 20.0)  # a clamp whose backward is one kernel
        self._drawn: tuple[Tensor | None, Tensor] = (None, lambda_)
        super().__init__(lambda_.shape[:-1], self.loc.shape[-1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.log_var.exp()

    def rsample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = ()) -> Tensor:
        eps = torch.randn((*sample_shape, *self.loc.shape), dtype=self.loc.dtype, device=self.loc.device)
        z = self.loc + (0.5 * self.log_var).exp() * eps
        self._drawn = (z, eps)
        return z

    def log_prob(self, value: Tensor) -> Tensor:
        z, eps = self._drawn
        # of its own draw the noise is known: exact, and nothing to differentiate
        squares = eps.square() if value is z else (value - self.loc).square() * (-self.log_var).exp()
        return -0.5 * squares.sum(-1).add(self.loc.shape[-1] * LOG_2_PI) - 0.5 * self.log_var.sum(-1)

    def entropy(self) -> Tensor:
        return 0.5 * (self.log_var + 1.0 + LOG_2_PI).sum(-1)


class VAE(nn.Module):
    """A ``Model`` from your encoder and decoder.

    encoder    ``encoder(x)`` returns (batch, 2 * latent): mean and log-variance of q(z | x)
    decoder    ``decoder(x, z)`` returns ln p(x | z), shape (batch,), so that autoregressive decoders fit
    posterior  another family: a function of lambda_ that returns a reparameterisable Distribution of batch shape (batch,)
    prior      another prior than the unit Gaussian: a torch Distribution over one z, or a function (or module, if it is
               trained or has to move to a GPU) that returns one

    >>> model = VAE(nn.Linear(3, 4), lambda x, z: -(x.sum(-1) - z.sum(-1)).square())
    >>> model.encode(torch.zeros(5, 3)).shape, isinstance(model, Model)
    (torch.Size([5, 4]), True)
    """

    def __init__(
        self,
        encoder: Callable[[Tensor], Tensor],
        decoder: Callable[[Tensor, Tensor], Tensor],
        posterior: Callable[[Tensor], Distribution] = DiagonalGaussian,
        prior: Distribution | Callable[[], Distribution] | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.decoder, self.family, self.prior = encoder, decoder, posterior, prior

    def encode(self, x: Tensor) -> Tensor:
        return self.encoder(x)

    def posterior(self, lambda_: Tensor) -> Distribution:
        return self.family(lambda_)

    def log_prior(self, z: Tensor) -> Tensor:
        if self.prior is None:
            z = z.reshape(len(z), -1)  # a scalar latent too
            return -0.5 * z.square().sum(-1).add(z.shape[-1] * LOG_2_PI)
        return self._prior().log_prob(z)

    def log_lik(self, x: Tensor, z: Tensor) -> Tensor:
        return self.decoder(x, z)

    def kl(self, q: Distribution) -> Tensor | None:
        """KL(q || p(z)), shape (batch,), or None where no closed form is known."""
        try:
            if self.prior is not None:
                return kl_divergence(q, self._prior())
            cross = 0.5 * (q.variance + q.mean.square() + LOG_2_PI)  # E_q[-ln N(z; 0, I)] needs two moments only
            return cross.reshape(*q.batch_shape, -1).sum(-1) - q.entropy()
        except NotImplementedError:
            return None

    def _prior(self) -> Distribution:
        if self.prior is None or isinstance(self.prior, Distribution):
            return self.prior  # type: ignore[return-value]
        return self.prior()


def trainable(model: object) -> list[Tensor]:
    """The model's parameters that want a gradient; none for a model that is no module."""
    parameters = getattr(model, "parameters", None)
    return [p for p in parameters() if p.requires_grad] if callable(parameters) else []


@contextmanager
def frozen(parameters: list[Tensor]) -> Iterator[None]:
    """Within this context the parameters want no gradient: for steps that need lambda's alone.

    Eager autograd leaves out by itself what nobody asks for, but a compiled decoder computes every gradient that is wanted.
    """
    leaves = [
        p for p in parameters if p.is_leaf
    ]  # torch.func.functional_call may put in others, which cannot be changed
    for parameter in leaves:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in leaves:
            parameter.requires_grad_(True)


def check_model(model: object) -> None:
    """Raise, with what to do, if ``model`` is no Model or its decoder would couple the examples of a batch."""
    missing = [
        name for name in ("encode", "posterior", "log_prior", "log_lik") if not callable(getattr(model, name, None))
    ]
    if missing:
        raise TypeError(
            f"a model needs the methods encode, posterior, log_prior and log_lik; {type(model).__name__} lacks "
            f"{', '.join(missing)}; use bsvi.VAE(encoder, decoder)"
        )
    decoder = getattr(model, "decoder", None)
    for name, module in decoder.named_modules() if isinstance(decoder, nn.Module) else ():
        if not isinstance(module, _BATCH_NORM | _DROPOUT):
            continue
        kind = f"{type(module).__name__} ({name or 'the decoder itself'})"
        if isinstance(module, _BATCH_NORM) and (module.training or module.running_mean is None):
            raise ValueError(
                f"the decoder's {kind} uses batch statistics: p(x|z) then depends on the batch and no bound holds; "
                "call model.decoder.eval(), or use GroupNorm or LayerNorm (the encoder may keep its BatchNorm)"
            )
        if isinstance(module, _DROPOUT) and module.training and module.p > 0:
            raise ValueError(
                f"the decoder's {kind} is active, so every draw is weighed by another p(x|z) and no bound holds; "
                "call model.decoder.eval(), or remove it"
            )


_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_DROPOUT = nn.modules.dropout._DropoutNd
