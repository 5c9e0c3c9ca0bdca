"""A model together with its trained refinement: what infers z is the encoder and the steps after it."""

from typing import Any

import torch
from torch import Tensor, nn

from bsvi.beyond.end_to_end import EndToEnd
from bsvi.draws import encode
from bsvi.examples import Nested
from bsvi.model import Model, call_with_x, uses_x


class WithRefinement(nn.Module):
    """A ``Model`` whose lambda_0 is where the trained refinement of ``model`` ends; the rest is the model's own.

    The encoder of a model that was trained end to end is only the start of its own refinement: its own ELBO can be a
    hundred nats lower than that of a VAE. Every estimate that starts from ``encode`` starts at the end of the trained steps here.
    They draw noise of their own, which no weight is made of, so every bound stays a bound.

    Example:
        >>> from bsvi import SVI, VAE, evaluate
        >>> model = VAE(nn.Linear(3, 4), lambda x, z: -(x[:, :2] - z).square().sum(-1))
        >>> whole = WithRefinement(model, EndToEnd(SVI(steps=2, lr=0.1)))
        >>> evaluate(whole, torch.ones(6, 3), k=5).elbo.mean > evaluate(model, torch.ones(6, 3), k=5).elbo.mean
        True
    """

    def __init__(self, model: Model, refinement: EndToEnd) -> None:
        super().__init__()
        if any(nn.parameter.is_lazy(p) for p in refinement.parameters()):
            raise ValueError("the refinement's network has no weights yet; train it first, or say width=2 * latent")
        self.model, self.refinement = model, refinement

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.model, name)

    @property
    def uses_x(self) -> bool:
        return uses_x(self.model)

    def encode(self, x: Nested, model: Model | None = None) -> Tensor:
        """lambda_k of the trained refinement; ``model`` may be the same one with noise of its own."""
        model = self.model if model is None else model
        with torch.no_grad():
            return self.refinement.last(model, x, encode(self.model, x))

    def posterior(self, lambda_: Tensor, x: Nested = None) -> Any:
        return call_with_x(self.model.posterior, lambda_, x)

    def log_prior(self, z: Tensor, x: Nested = None) -> Tensor:
        return call_with_x(self.model.log_prior, z, x)

    def log_lik(self, x: Nested, z: Tensor) -> Tensor:
        return self.model.log_lik(x, z)


def add_refinement(model: Any, objective: Any) -> Any:
    """The model with the refinement that its objective trained, or the model itself where none was."""
    refinement = getattr(objective, "refinement", None)
    return WithRefinement(model, refinement) if isinstance(refinement, EndToEnd) else model
