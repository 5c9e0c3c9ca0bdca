"""Random numbers that are functions of what they are for: no state, no order of calls, no dependence on workers.

Every number is the splitmix64 finaliser over a chain of integer words (seed, stream, epoch, example, pixel), in numpy's
unsigned arithmetic, so that the same words give the same bits on every machine and for every version of torch or numpy.
Appendix of the paper: "dynamic binarisation"; here its noise is a function of (seed, epoch, example).
"""

import numpy as np
from jaxtyping import Float64, Int64, UInt64

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_WORD = (1 << 64) - 1


def mix(words: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    """Return the words scrambled, in place: a bijection on 64 bits whose output bits all depend on all input bits."""
    shifted = words >> np.uint64(30)
    words ^= shifted
    words *= _FIRST
    np.right_shift(words, np.uint64(27), out=shifted)
    words ^= shifted
    words *= _SECOND
    np.right_shift(words, np.uint64(31), out=shifted)
    words ^= shifted
    return words


def make_key(*words: int) -> int:
    """Return one 64-bit key for a tuple of integers; the order of the words matters.

    >>> make_key(1, 2) == make_key(1, 2), make_key(1, 2) == make_key(2, 1)
    (True, False)
    """
    state = np.zeros(1, np.uint64)
    for word in words:
        state += GOLDEN
        state ^= mix(np.array([int(word) & _WORD], np.uint64) + GOLDEN)
        mix(state)
    return int(state[0])


def make_example_keys(ids: Int64[np.ndarray, " n"], *words: int) -> UInt64[np.ndarray, " n"]:
    """Return one 64-bit key per example, a function of the words and of that example's id alone."""
    return mix(mix(ids.astype(np.uint64) + GOLDEN) ^ np.uint64(make_key(*words)))


def shuffle_positions(ids: Int64[np.ndarray, " n"], *words: int) -> Int64[np.ndarray, " n"]:
    """Return a random order of the positions 0..n-1; which of two examples comes first depends on their ids alone.

    >>> shuffle_positions(np.arange(5), 7).tolist() == shuffle_positions(np.arange(5), 7).tolist()
    True
    """
    return np.argsort(make_example_keys(ids, *words), kind="stable").astype(np.int64, copy=False)


def draw_uniforms(keys: UInt64[np.ndarray, " n"], count: int) -> Float64[np.ndarray, "n count"]:
    """Return `count` numbers in [0, 1) per key, each on a grid of 2^-32: two of them from every 64-bit word."""
    words = np.arange(1, (count + 1) // 2 + 1, dtype=np.uint64) * GOLDEN
    halves = mix(keys[:, None] + words).astype("<u8", copy=False).view("<u4")[:, :count]
    return halves * 2.0**-32
