"""Where the draws come from: the encoder alone, or the SVI steps of Algorithm 1."""

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, SupportsIndex, runtime_checkable

import torch
from torch import Tensor

from bsvi.model import Model, frozen, trainable
from bsvi.trajectory import Buffer, GraphSize, Trajectory, Weighed, closed_form_kl, encode, weigh

PAPER_BATCH = 50  # the batch over which the paper's SVI step was averaged and clipped


class Refined(NamedTuple):
    """A trajectory, and a term (batch,) that is zero in value and carries phi's gradient."""

    trajectory: Trajectory
    phi: Tensor


@runtime_checkable
class Refinement(Protocol):
    """Proposes weighted draws. ``attach`` says how many of the last proposals keep their graph to theta (None: all), unless
    these graphs would take more than ``budget`` bytes."""

    def __call__(
        self, model: Model, x: Tensor, beta: float = 1.0, attach: int | None = None, budget: float = math.inf
    ) -> Refined: ...


@dataclass(frozen=True)
class Amortized:
    """``draws`` independent draws from the encoder's own q(z; lambda_0): the VAE with one, IWAE with more.

    lambda_0 stays attached, so phi follows the bound itself. With ``recompute`` the decoder runs draw by draw, and again in
    backward, so that one draw's graph is alive at a time in place of all.
    """

    draws: int = 1
    recompute: bool = False

    def __post_init__(self) -> None:
        vars(self).update(draws=whole("draws", self.draws))
        if self.draws < 1:
            raise ValueError(f"Amortized needs draws >= 1, got {self.draws}; one draw is the VAE, k' draws are IWAE-k'")

    def __call__(
        self, model: Model, x: Tensor, beta: float = 1.0, attach: int | None = None, budget: float = math.inf
    ) -> Refined:
        lambda_ = encode(model, x)
        q = model.posterior(lambda_)
        calls, samples = (self.draws, 1) if self.recompute else (1, self.draws)
        buffer = Buffer(calls, samples)
        for _ in range(calls):
            buffer.add(lambda_, weigh(model, x, q, samples, beta, self.recompute))
        trajectory = replace(buffer.trajectory(model, beta), samples=1)  # every draw is a row of its own
        return Refined(trajectory, torch.zeros(len(x), dtype=torch.float64, device=x.device))


class Step(NamedTuple):
    """One proposal of the walk: lambda_i, its weighted draws, and the raw gradient at lambda_i."""

    lambda_: Tensor
    weighed: Weighed
    gradient: Tensor  # empty at the last proposal, which takes no step


@dataclass(frozen=True)
class SVI:
    """``steps`` gradient steps on lambda, so steps + 1 proposals and weights (Algorithm 1).

    Each example takes its own step: the gradient of its own ln w, clipped by its own norm. The defaults are the paper's
    (lr 1, clip 1, batch 50) translated to this per-example form by ``from_paper``, which explains them.
    To refine in another way, override ``ascend``; docs/extending.md shows how.

    >>> SVI(steps=0)
    Traceback (most recent call last):
    ...
    ValueError: SVI needs steps >= 1, got 0; for no refinement use Amortized()
    """

    steps: int = 9  # k of the paper's BSVI-k
    lr: float = 1.0 / PAPER_BATCH  # in the coordinates mean and log-variance
    momentum: float = 0.5  # the paper's
    max_grad_norm: float = math.sqrt(PAPER_BATCH)  # per example, for mean and log-variance each; inf for no clipping
    double_sampling: bool = False  # the step's gradient from a draw of its own, section 4.2
    samples: int = 1  # m draws per step: w_i is the average of their weights
    closed_form_kl: bool = False  # gradient of ln p(x|z) - KL(q||p) in place of ln w; the weights stay sampled
    clip: Literal["example", "batch"] = "example"  # "batch": the literal form of Kim et al. (2018), see from_paper

    def __post_init__(self) -> None:
        vars(self).update(steps=whole("steps", self.steps), samples=whole("samples", self.samples))
        if self.steps < 1:
            raise ValueError(f"SVI needs steps >= 1, got {self.steps}; for no refinement use Amortized()")
        if self.samples < 1:
            raise ValueError(f"SVI needs samples >= 1, got {self.samples}; the paper uses 1")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"SVI needs 0 <= momentum < 1, got {self.momentum}; the paper uses 0.5")
        if not self.max_grad_norm > 0:
            raise ValueError(f"SVI needs max_grad_norm > 0, got {self.max_grad_norm}; for no clipping use math.inf")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"SVI needs a finite lr > 0, got {self.lr}; the default is {1 / PAPER_BATCH}")
        if self.clip not in _CLIP_AXES:
            raise ValueError(f"SVI clips per 'example' or per 'batch', got {self.clip!r}")

    @classmethod
    def from_paper(
        cls, lr: float = 1.0, max_grad_norm: float = 1.0, batch_size: int = PAPER_BATCH, **fields: Any
    ) -> "SVI":
        """The paper's numbers in per-example form.

        The paper follows Kim et al. (2018), who average over the batch and clip the whole batch's mean and log-variance
        tensors: an example's result then depends on its batch mates. With B examples of like gradients that is a rate
        of lr / B and a norm of max_grad_norm * B / sqrt(B) per example, which is what this returns.
        The literal form is ``SVI(lr=1.0, max_grad_norm=1.0, clip="batch")``.

        >>> SVI.from_paper() == SVI()
        True
        """
        return cls(lr=lr / batch_size, max_grad_norm=max_grad_norm * math.sqrt(batch_size), **fields)

    def __call__(
        self, model: Model, x: Tensor, beta: float = 1.0, attach: int | None = None, budget: float = math.inf
    ) -> Refined:
        lambda_0 = encode(model, x)  # Alg. 1, l.4
        buffer = Buffer(self.steps + 1, self.samples)
        for step in self.walk(model, x, lambda_0, beta, self.steps + 1 if attach is None else attach, budget):
            if len(buffer) == 0:
                g_0 = finite(step.gradient)  # raw, not clipped: phi follows ln w_0, and theta gets none of it (l.12)
            buffer.add(step.lambda_, step.weighed)
        return Refined(buffer.trajectory(model, beta), ((lambda_0 - lambda_0.detach()) * g_0).sum(-1).double())

    def walk(
        self, model: Model, x: Tensor, lambda_: Tensor, beta: float = 1.0, attach: int = 0, budget: float = math.inf
    ) -> Iterator[Step]:
        """Algorithm 1, l.5-11, one proposal at a time; without ``attach`` no decoder graph outlives its step."""
        attach = attach if torch.is_grad_enabled() else 0
        theta = trainable(model)
        state = None
        for i in range(self.steps + 1):  # l.5
            last, keep = i == self.steps, i > self.steps - attach
            lambda_ = lambda_.detach().requires_grad_(not last)  # the stop-gradient: theta must not learn through SVI
            with frozen([] if keep else theta), torch.set_grad_enabled(keep or not (last or self.double_sampling)):
                q = model.posterior(lambda_)
                with GraphSize(measured=keep and i == 0 and budget < math.inf) as graph:
                    weighed = weigh(model, x, q, self.samples, beta)  # l.6-7
            if attach * graph.bytes > budget and theta:
                attach, keep = 0, False
            gradient = lambda_.new_empty(0)
            if not last and not self.double_sampling:  # l.8
                gradient = self.gradient(model, lambda_, q, weighed, beta, retain_graph=keep)
            elif not last:  # section 4.2: a probe of its own, so that lambda_{i+1} does not depend on z_i
                with frozen(theta), torch.enable_grad():
                    q = model.posterior(lambda_)
                    gradient = self.gradient(model, lambda_, q, weigh(model, x, q, self.samples, beta), beta)
            yield Step(lambda_.detach(), weighed if keep else weighed.detach(), gradient)
            if not last:
                lambda_, state = self.ascend(lambda_.detach(), self.clipped(gradient, q), state)  # l.9

    def gradient(
        self, model: Model, lambda_: Tensor, q: Any, weighed: Weighed, beta: float, retain_graph: bool = False
    ) -> Tensor:
        """The gradient of each example's ELBO at lambda, through the reparameterised draws (eq. 6)."""
        with torch.enable_grad():
            elbo = weighed.log_w
            if self.closed_form_kl:
                kl = closed_form_kl(model, q)
                if kl is None:
                    raise ValueError(
                        f"closed_form_kl: no KL is known for {type(q).__name__} and this prior; leave it off"
                    )
                elbo = weighed.log_lik - beta * kl
            elbo = elbo.sum() if self.samples == 1 else elbo.mean(0).sum()
            return torch.autograd.grad(elbo, lambda_, retain_graph=retain_graph)[0]

    def clipped(self, gradient: Tensor, q: Any) -> Tensor:
        """The gradient with each block (mean, log-variance) scaled to at most ``max_grad_norm``."""
        gradient = finite(gradient)
        if self.clip == "batch":
            gradient = gradient / len(gradient)
        if self.max_grad_norm == math.inf:
            return gradient
        blocks = gradient.unflatten(-1, (getattr(q, "blocks", 1), -1))
        norm = torch.linalg.vector_norm(blocks, dim=_CLIP_AXES[self.clip], keepdim=True)
        return (blocks * (self.max_grad_norm / norm).clamp(max=1.0)).flatten(-2)

    def ascend(self, lambda_: Tensor, gradient: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One step: v <- momentum v + g, lambda <- lambda + lr v; returns lambda_{i+1} and v.

        ``gradient`` is clipped and finite; ``state`` is None at the first step. An override may use anything computed
        from x and earlier draws, but must not choose, drop or repeat draws by their weights: that breaks Theorem 1.
        """
        velocity = gradient if state is None else self.momentum * state + gradient
        return lambda_ + self.lr * velocity, velocity


def finite(gradient: Tensor) -> Tensor:
    """The gradient with non-finite entries replaced by zero: such a coordinate stays where it is."""
    return gradient.nan_to_num(0.0, 0.0, 0.0)


_CLIP_AXES: dict[str, tuple[int, ...]] = {"example": (-1,), "batch": (0, -1)}


def whole(name: str, value: SupportsIndex) -> int:
    """The value as an int: a whole number of Python, numpy or torch."""
    try:
        return operator.index(None if isinstance(value, bool) else value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{name} must be a whole number, got {value!r}; give an int") from None
