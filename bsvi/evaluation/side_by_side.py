"""Several latent sites in one flat z: where it lives, and coordinates without bounds, each site by its own bijection.

A site's coordinates can be fewer than its numbers: those of a Dirichlet over K shares are K - 1.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import ComposeTransform, IndependentTransform, Transform, biject_to, constraints

Shapes = Sequence[Sequence[int]]


class SideBySide(constraints.Constraint):
    """Flat z (..., numbers), each site's part of which fulfils that site's own constraint.

    >>> support = SideBySide([constraints.positive, constraints.simplex], [(1,), (3,)])
    >>> z = biject_to(support)(torch.zeros(5, 3))
    >>> z.shape, support.check(z).all().item(), support.check(-z).any().item()
    (torch.Size([5, 4]), True, False)
    """

    event_dim = 1

    def __init__(self, supports: Sequence[Any], shapes: Shapes) -> None:
        self.supports, self.shapes = list(supports), [torch.Size(shape) for shape in shapes]

    def check(self, value: Tensor) -> Tensor:
        """Which rows of z are inside; sums that must be exact, as those of shares, are left to their bijection."""
        inside = torch.ones(value.shape[:-1], dtype=torch.bool, device=value.device)
        for support, part in zip(self.supports, _cut(value, self.shapes), strict=True):
            single = find_single(support)
            if single.event_dim == 0:
                inside = inside & _flat(single.check(part), value.shape[:-1]).all(-1)
        return inside


def find_single(support: Any) -> Any:
    """The constraint of single numbers, or of the smallest part that has one."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support


class EachSite(Transform):
    """z of u: the sites' bijections side by side."""

    bijective = True
    domain = constraints.real_vector

    def __init__(self, support: SideBySide) -> None:
        super().__init__()
        self.support = support
        self.parts = [biject_to(one) for one in support.supports]
        self.shapes = [part.inverse_shape(shape) for part, shape in zip(self.parts, support.shapes, strict=True)]

    @property
    def codomain(self) -> constraints.Constraint:  # type: ignore[override]
        return self.support

    def _call(self, x: Tensor) -> Tensor:
        pieces = zip(self.parts, _cut(x, self.shapes), strict=True)
        return torch.cat([_flat(part(u), x.shape[:-1]) for part, u in pieces], -1)

    def _inverse(self, y: Tensor) -> Tensor:
        pieces = zip(self.parts, _cut(y, self.support.shapes), strict=True)
        return torch.cat([_flat(part.inv(z), y.shape[:-1]) for part, z in pieces], -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        pieces = zip(self.parts, _cut(x, self.shapes), _cut(y, self.support.shapes), strict=True)
        each = [_flat(part.log_abs_det_jacobian(u, z), x.shape[:-1]).sum(-1) for part, u, z in pieces]
        return torch.stack(each).sum(0)

    def forward_shape(self, shape: Sequence[int]) -> torch.Size:
        return torch.Size((*shape[:-1], sum(part.numel() for part in self.support.shapes)))

    def inverse_shape(self, shape: Sequence[int]) -> torch.Size:
        return torch.Size((*shape[:-1], sum(part.numel() for part in self.shapes)))


@biject_to.register(SideBySide)
def _coordinates(support: SideBySide) -> Transform:
    made = EachSite(support)
    if all(map(_is_identity, made.parts)):
        return IndependentTransform(ComposeTransform([]), 1)
    return made


def _is_identity(transform: Transform) -> bool:
    while isinstance(transform, IndependentTransform):
        transform = transform.base_transform
    return isinstance(transform, ComposeTransform) and not transform.parts


def _cut(flat: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    pieces = flat.split([shape.numel() for shape in shapes], -1)
    return [piece.reshape((*flat.shape[:-1], *shape)) for piece, shape in zip(pieces, shapes, strict=True)]


def _flat(part: Tensor, lead: torch.Size) -> Tensor:
    return part.reshape((*lead, -1))
