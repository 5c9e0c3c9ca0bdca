"""The SVI steps of Algorithm 1; bsvi/amortized.py has what all refinements share, under the names of this file, too."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from bsvi.amortized import Amortized, Options, Refined, Refinement, TakesOptions, whole
from bsvi.direct import Ascent, DirectProposals, Stepped, find_direct, find_lean, finite
from bsvi.draws import Draw, Weighed, closed_form_kl, draw, each_block, encode, posterior
from bsvi.examples import Nested
from bsvi.graphs import Graphs
from bsvi.model import DiagonalGaussian, Model
from bsvi.parameters import find_reached_parameters
from bsvi.trajectory import Buffer

__all__ = ["SVI", "Amortized", "Options", "Refined", "Refinement", "Step", "TakesOptions", "finite", "whole"]
PAPER_BATCH = 50  # the batch over which the paper's SVI step was averaged and clipped
Family = tuple[tuple[Tensor, Tensor], ...]  # q's own parameters and their gradients


class Step(NamedTuple):
    """One proposal of the walk: lambda_i, its weighted draws, and the raw gradient at lambda_i."""

    lambda_: Tensor
    weighed: Weighed
    gradient: Tensor  # empty at the last proposal, which takes no step
    family: Family = ()  # at the first
    kept: bool = False  # whether the graphs to theta that were asked for are there


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
        self, model: Model, x: Nested, beta: float = 1.0, attach: int | None = None, budget: float = math.inf
    ) -> Refined:
        lambda_0 = encode(model, x)  # Alg. 1, l.4
        buffer = Buffer(self.steps + 1, self.samples)
        for step in self.walk(model, x, lambda_0, beta, self.steps + 1 if attach is None else attach, budget):
            if len(buffer) == 0:
                # raw, not clipped: phi and q's own parameters follow ln w_0, and theta gets none of it (l.12)
                phi = ((lambda_0 - lambda_0.detach()) * finite(step.gradient)).sum(-1).double()
                phi = phi + sum(((p - p.detach()) * finite(g)).sum().double() for p, g in step.family) / len(lambda_0)
            buffer.add(step.lambda_, step.weighed)
        kept = step.kept and buffer.differentiable
        if not kept:
            buffer.attached.clear()
        return Refined(replace(buffer.trajectory(model, x, beta), kept=kept), phi)

    @property
    def rows(self) -> int:
        """Weighted draws per example."""
        return self.samples * (self.steps + 1)

    @property
    def decoder_calls(self) -> int:
        """Passes of the decoder per example, counting each row of a batched call."""
        return self.samples * (2 * self.steps + 1 if self.double_sampling else self.steps + 1)

    def walk(
        self, model: Model, x: Nested, lambda_: Tensor, beta: float = 1.0, attach: int = 0, budget: float = math.inf
    ) -> Iterator[Step]:
        """Algorithm 1, l.5-11, one proposal at a time.

        Args:
            attach: how many of the last proposals keep their decoder graph for theta; without it no graph outlives its step.
            budget: bytes that these graphs may take; beyond it none is kept.
        """
        lambda_, state = lambda_.detach(), None
        direct = None if self.closed_form_kl else find_direct(model, x, lambda_, self.samples, beta)
        graphs = Graphs(model, x, beta, self.steps + 1, attach, budget)
        lean = find_lean(model, x, lambda_, beta) if direct and graphs.kept and self.is_plain else None
        for i in range(self.steps):  # l.5
            steps = lean if (keep := graphs.keeps(i)) else direct
            if steps is None:
                weighed, g, family, q = self.propose(i, model, x, lambda_, beta, graphs)  # l.6-8
                yield Step(lambda_, weighed, g, family, graphs.kept)
                lambda_, state = self.ascend(lambda_, self.clipped(g, q), state)  # l.9
            else:
                stepped = self.step_directly(steps, lambda_, state, keep)  # l.6-9
                yield Step(lambda_, stepped.weighed, stepped.gradient, (), graphs.kept)
                lambda_, state = stepped.lambda_, stepped.velocity
            lambda_ = lambda_.detach()  # the stop-gradient: theta must not learn through SVI
        with torch.no_grad():
            if direct is None or graphs.keeps(self.steps):
                drawn = draw(posterior(model, lambda_, x), self.samples, len(lambda_))
                weighed = graphs.weigh(self.steps, drawn, steers=False)
            else:
                weighed = direct.weigh(lambda_)
        yield Step(lambda_, weighed, lambda_.new_empty(0), (), graphs.kept)  # no step follows l.11

    def propose(
        self, i: int, model: Model, x: Nested, lambda_: Tensor, beta: float, graphs: Graphs
    ) -> tuple[Weighed, Tensor, Family, Any]:
        """Proposal i by autograd: its weighted draws, the gradient by lambda, at the first that by q's own parameters, and q."""
        samples, batch, training = self.samples, len(lambda_), torch.is_grad_enabled()
        lambda_ = lambda_.detach().requires_grad_()
        with torch.enable_grad():
            q = posterior(model, lambda_, x)
            steering = drawn = draw(q, samples, batch)  # l.6
        steered = weighed = graphs.weigh(i, drawn, steers=not self.double_sampling)  # l.7
        if self.double_sampling:  # section 4.2: another draw steers, so that lambda_{i+1} does not depend on z_i
            with torch.enable_grad():
                steering = draw(q, samples, batch)
            steered = graphs.weigh_apart(steering, steers=True)
        reached = find_reached_parameters(model, *steering) if i == 0 and training else []
        own = [p for p in reached if p is not lambda_]
        retain = graphs.keeps(i) and not self.double_sampling
        g, *others = self.gradients([lambda_, *own], model, x, q, steering, steered, beta=beta, keep=retain)  # l.8
        return weighed if graphs.keeps(i) else weighed.detach(), g, tuple(zip(own, others, strict=True)), q

    @property
    def is_plain(self) -> bool:
        """Whether a step is Algorithm 1's own, one draw and no method changed, so that it can be one function."""
        unchanged = all(getattr(type(self), name) is getattr(SVI, name) for name in ("ascend", "clipped", "share"))
        return unchanged and self.samples == 1 and self.clip == "example" and not self.double_sampling

    def step_directly(self, direct: DirectProposals, lambda_: Tensor, state: Any, keep: bool) -> Stepped:
        """A step without autograd (l.6-9), as one function where it is Algorithm 1's own; ``keep``: its graph to theta stays."""
        share = None if self.samples == 1 and type(self).share is SVI.share else self.share
        if self.is_plain:
            with torch.set_grad_enabled(keep):  # to theta alone: lambda has no graph
                stepped = direct.step(lambda_, state, Ascent(self.momentum, self.max_grad_norm), self.lr)
            return Stepped(stepped.weighed, *(each.detach() for each in stepped[1:]))
        with torch.no_grad():
            drawn = direct.weigh(lambda_) if self.double_sampling else None
            weighed, g = direct(lambda_, share)
        return Stepped(drawn or weighed, g, *self.ascend(lambda_, self.clipped(g, DiagonalGaussian), state))

    def gradients(
        self,
        of: list[Tensor],
        model: Model,
        x: Nested,
        q: Any,
        drawn: Draw,
        weighed: Weighed,
        *,
        beta: float,
        keep: bool,
    ) -> list[Tensor]:
        """The gradient of the examples' ELBOs by lambda and q's own parameters, through the reparameterised draws (eq. 6).

        In two halves: from ln p(x, z) to z, whose graph may be there to ``keep``, and from z and ln q on.
        """
        log_w = weighed.log_w.detach()
        share = torch.where(log_w.abs() < math.inf, self.share(log_w), 0.0)  # a draw of weight zero steers nothing
        value, density = weighed.log_w, drawn.log_q
        if self.closed_form_kl:
            with torch.enable_grad():
                kl = closed_form_kl(model, q, x)
                if kl is None:
                    family = type(q).__name__
                    raise ValueError(f"closed_form_kl: no KL is known for {family} and this prior; leave it off")
                value, density = weighed.log_lik, kl.expand_as(drawn.log_q)
        slope = torch.zeros_like(weighed.z)
        if value.requires_grad:  # else neither decoder nor prior depends on z
            by_z = torch.autograd.grad(value, weighed.z, share, retain_graph=keep, allow_unused=True)[0]
            slope = slope if by_z is None else finite(by_z)
        ends = [(drawn.z, slope), (density, (-beta * share).to(density))]
        ends = [(end, side) for end, side in ends if end.requires_grad]
        outputs, sides = [end for end, _ in ends], [side for _, side in ends]
        found = torch.autograd.grad(outputs, of, sides, allow_unused=True) if ends else [None] * len(of)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(of, found, strict=True)]

    def share(self, log_w: Tensor) -> Tensor:
        """How much each draw (samples, batch) of a proposal steers: all the same, which is the gradient of its ELBO."""
        return torch.full_like(log_w, 1.0 / self.samples)

    def clipped(self, gradient: Tensor, q: Any) -> Tensor:
        """The gradient with each block (mean, log-variance) scaled to at most ``max_grad_norm``."""
        gradient = finite(gradient)
        if self.clip == "batch":
            gradient = gradient / len(gradient)
        if self.max_grad_norm == math.inf:
            return gradient

        def clip(blocks: Tensor) -> Tensor:
            norm = torch.linalg.vector_norm(blocks, dim=_CLIP_AXES[self.clip], keepdim=True)
            return blocks * (self.max_grad_norm / norm).clamp(max=1.0)

        return each_block(gradient, q, clip)

    def ascend(self, lambda_: Tensor, gradient: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One step: v <- momentum v + g, lambda <- lambda + lr v; returns lambda_{i+1} and v.

        ``gradient`` is clipped and finite; ``state`` is None at the first step. An override may use anything computed
        from x and earlier draws, but must not choose, drop or repeat draws by their weights: that breaks Theorem 1.
        """
        velocity = gradient if state is None else torch.add(gradient, state, alpha=self.momentum)
        return torch.add(lambda_, velocity, alpha=self.lr), velocity


_CLIP_AXES: dict[str, tuple[int, ...]] = {"example": (-1,), "batch": (0, -1)}
