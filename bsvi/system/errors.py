"""Errors that the command line knows, so that each has its own exit code; and whether an error means that memory ran out."""

import sys

# What torch says when there is no memory, where it has no exception of its own for that.
NO_MEMORY = ("can't allocate memory", "not enough memory", "CUDA out of memory", "Storage size calculation overflowed")


class RunError(RuntimeError):
    """Something about a run folder that the user can act on; one line."""


class NotFinite(ArithmeticError):
    """Training met NaN or infinity and stopped before any parameter took it in; the message has step, tensor and ids."""


class FailedElsewhere(RuntimeError):
    """The first of several processes has failed, and tells the user why itself."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there was not enough memory, by Python's, torch's or the allocator's own words.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("CUDA out of memory")), is_out_of_memory(ValueError())
    (True, True, False)
    """
    torch = sys.modules.get("torch")  # not imported here: an error of torch's comes after its import
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in NO_MEMORY)
