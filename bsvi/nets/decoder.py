"""What every decoder of the package shares: ln p(x | z) from a map of likelihood parameters."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bsvi.nets.likelihoods import Bernoulli
from bsvi.nets.slopes import Slopes

LogLik = Callable[[Tensor, Tensor], Tensor]
Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]


class Decoder(nn.Module, ABC):
    """p_theta(x | z): call it with images and latents for ln p(x | z) per image, float64; `sample` draws images.

    A subclass gives `params(x, z)`, the likelihood's parameter for each pixel, and `sample`. An autoregressive decoder
    reads x there, any other ignores it.
    """

    def __init__(self, latent: int, image: tuple[int, int], likelihood: nn.Module | None) -> None:
        super().__init__()
        if latent < 1 or min(image) < 1:
            raise ValueError(f"a decoder needs latent >= 1 and an image of at least 1x1, got {latent} and {image}")
        self.latent, self.image = latent, image
        self.likelihood: nn.Module = Bernoulli() if likelihood is None else likelihood
        self._compiled: LogLik | None = None
        self._compiler: Compiler | None = None
        self._steps: dict[Any, Callable[..., Any]] = {}

    @abstractmethod
    def params(
        self, x: Float[Tensor, "batch 1 height width"], z: Float[Tensor, "batch latent"]
    ) -> Float[Tensor, "batch 1 height width"]:
        """Return the likelihood's parameter for each pixel: a logit, or a mean."""

    @abstractmethod
    def sample(
        self, z: Float[Tensor, "batch latent"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "batch 1 height width"]:
        """Return one image per latent, drawn from p(x | z)."""

    def log_lik(
        self, x: Float[Tensor, "batch 1 height width"], z: Float[Tensor, "batch latent"]
    ) -> Float[Tensor, " batch"]:
        """Return ln p(x | z) per image, never compiled."""
        params = self.params(x, z)
        if params.dtype in (torch.float16, torch.bfloat16):  # autocast: the probabilities of a pixel must sum to one
            params = params.float()
        return self.likelihood.log_prob(x, params)  # type: ignore[operator]

    def slopes(self, x: Tensor) -> Slopes | Callable[..., tuple[Tensor, Tensor | None]] | None:
        """ln p(x | z) and its derivative by z as a function of z; None where autograd has to find it."""
        return None

    def forward(
        self, x: Float[Tensor, "batch 1 height width"], z: Float[Tensor, "batch latent"]
    ) -> Float[Tensor, " batch"]:
        """Return ln p(x | z) per image, float64: the paper's p_theta(x | z)."""
        if x.shape[1:] != (1, *self.image):
            want = (1, *self.image)
            raise ValueError(f"this decoder takes images of shape (batch, *{want}), got {tuple(x.shape)}")
        if z.shape != (x.shape[0], self.latent):
            raise ValueError(f"z must be ({x.shape[0]}, {self.latent}) beside these images, got {tuple(z.shape)}")
        return (self._compiled or self.log_lik)(x, z)

    def compile_with(self, compiler: Compiler | None) -> None:
        """Send further calls through `compiler(self.log_lik)`; None goes back to the eager path. Not saved or copied.

        Where the decoder knows its `slopes`, whole steps of a refinement go through the compiler, too.
        """
        self._compiled = None if compiler is None else compiler(self.log_lik)
        self._compiler, self._steps = compiler, {}

    @property
    def compile_step(self) -> Compiler | None:
        """What makes one compiled function of a step and its first arguments; None where nothing is compiled."""
        return None if self._compiler is None else self._compile_step

    def _compile_step(self, step: Callable[..., Any], *constants: Any) -> Callable[..., Any]:
        if self._compiler is not None and (step, *constants) not in self._steps:
            self._steps[step, *constants] = self._compiler(partial(step, *constants))
        return self._steps[step, *constants]

    def noise(self, z: Float[Tensor, "batch latent"], generator: torch.Generator | None) -> Tensor:
        """Return the uniform noise of one image per latent, drawn where the generator lives."""
        device = z.device if generator is None else generator.device
        shape = (z.shape[0], 1, *self.image)
        return torch.rand(shape, generator=generator, dtype=z.dtype, device=device).to(z.device)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None, "_compiler": None, "_steps": {}}
