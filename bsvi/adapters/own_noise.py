"""Noise of another library's code, which draws latents that are not used here, or has dropout in its encoder."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor


@contextmanager
def own_noise(like: Tensor) -> Iterator[None]:
    """Within this context noise has nothing in common with what torch's generator draws next; it is left as it was.

    Without new seeds an encoder's dropout and the draws of z after it would come from the same random numbers.

    >>> with own_noise(torch.zeros(1)):
    ...     inside = torch.rand(3)
    >>> torch.equal(inside, torch.rand(3))
    False
    """
    cuda = [like.device] if like.is_cuda else []
    with torch.random.fork_rng(devices=cuda), torch.cuda.device(like.device) if cuda else nullcontext():
        seed = int(torch.randint(2**62, ()))  # of the generator's present state: a run can be repeated
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed(seed)
        yield
