"""ais(): annealed importance sampling, a judge of ln p(x) that shares nothing with the encoder (Wu et al., 2017).

Chains go from the prior to the posterior along p(z) p(x|z)^beta, beta from 0 to 1, by Hamiltonian Monte Carlo, and their
weights average to p(x): a lower bound on ln p(x) in expectation. Run backwards from exact posterior samples they average
to 1 / p(x): an upper bound. The two together are the sandwich of bidirectional Monte Carlo (Grosse et al., 2015).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bsvi.draws import posterior
from bsvi.evaluation.arguments import check_counts
from bsvi.evaluation.diagnostics import Tally
from bsvi.evaluation.doubts import list_nonfinite
from bsvi.evaluation.evaluate import cut_into_chunks, encode_detached
from bsvi.evaluation.example_ids import Batches
from bsvi.evaluation.hmc import Coordinates, Path, PriorPath, move_chains
from bsvi.evaluation.noise import Noise, NoiseStream
from bsvi.evaluation.passes import Progress, tabulate
from bsvi.evaluation.per_example import PerExample, column
from bsvi.evaluation.priors import Prior, find_prior, resolve_prior
from bsvi.examples import Nested, Pick, count, first
from bsvi.model import Model
from bsvi.tables.streams import find_streams

START, MOVE = find_streams("ais", "start", "move")
PILOT_START, PILOT_MOVE = find_streams("ais", "pilot-start", "pilot-move")
_TARGET, _RATE = 0.65, 0.1  # the acceptance that HMC works best at, and how fast the pilots' step follows it
_GRAPH = 2  # a decoder call that keeps its graph takes this many times the memory, or somewhat more


@dataclass(frozen=True, eq=False, kw_only=True)
class Annealed(PerExample):
    """What ``bsvi.ais`` returns: ``log_likelihood``, a ``Score`` per example, and how the chains did.

    bound       "lower" (forward), or "upper" (reverse): what log_likelihood is of ln p(x), in expectation
    acceptance  share of accepted moves per example, around 0.65 where all is well
    ess         how many of the chains the estimate is worth, per example
    """

    bound: str
    passes: int = 0  # of the decoder for one example, where one with a gradient to z counts two

    log_likelihood = column("log_likelihood")
    acceptance = column("acceptance")
    ess = column("ess")

    def diagnostics(self) -> dict[str, float]:
        """The means over examples of what says how the chains did."""
        names = ("ess", "acceptance", "rise", "correlated", "step_size")
        return {name: float(self.columns[name].mean()) for name in names if name in self.columns}


def ais(
    model: Model,
    batches: Batches,
    chains: int = 16,
    temperatures: int = 500,
    leapfrog: int = 10,
    seed: int = 0,
    *,
    prior: Prior | None = None,
    reverse: Callable[[Nested, int], Tensor] | None = None,
    pilots: int = 4,
    chunk: int | None = None,
    store: str | PathLike[str] | None = None,
    progress: Progress | None = None,
    batch: Pick | None = None,
    ids: Pick | None = None,
) -> Annealed:
    """ln p(x) of every example by ``chains`` annealed chains; batches, batch, ids, store and progress as in ``evaluate``.

    Args:
        temperatures: intermediate distributions, on a sigmoid schedule: more of them, a tighter bound
        leapfrog: gradient steps per move; one move per temperature
        prior: the distribution of one z, to draw from; found by itself for a unit Gaussian and for VAE(prior=...);
            or a function of x that returns one for each example, of batch shape (batch,)
        reverse: a function of (x, chains) that returns exact samples of p(z|x), (chains, batch, latent): upper
            bound
        pilots: extra chains that choose the step size of each temperature, for each example, and are then thrown
            away: a step size taken from the weighed chains' own past would bias their weights
        chunk: chains per decoder call; no number depends on it

    Returns:
        ``Annealed``: ``log_likelihood`` per example, and how the chains did.

    Example:
        >>> from bsvi import VAE
        >>> normal = lambda x, z: -0.5 * ((x - z).square() + math.log(2 * math.pi)).sum(-1)
        >>> annealed = ais(VAE(torch.nn.Linear(1, 2), normal), torch.zeros(2, 1), chains=8, temperatures=20)
        >>> abs(annealed.log_likelihood.mean - -0.5 * math.log(4 * math.pi)) < 0.1
        True
    """
    settings = {"chains": chains, "temperatures": temperatures, "leapfrog": leapfrog, "pilots": pilots}
    seed, chains, temperatures, leapfrog, pilots = check_counts(seed, chunk, **settings)
    if temperatures < 2:
        raise ValueError("temperatures must be at least 2, got 1; 500 is the default")
    betas = make_schedule(temperatures)
    betas = betas if reverse is None else betas[::-1]

    def anneal_batch(x: Nested, names: Tensor) -> dict[str, Tensor]:
        shape = posterior(model, encode_detached(model, x), x).event_shape
        source = find_prior(model, x, prior) if reverse is not None else resolve_prior(model, x, shape, prior)
        device = first(x).device
        coordinates = Coordinates.of(source, device)
        if source is not None and source.event_shape != shape:
            raise ValueError(
                f"the prior must be of z with shape {tuple(shape)}, got one with shape {tuple(source.event_shape)}"
            )
        path = PriorPath(model, x, coordinates)

        def start(stream: NoiseStream, rows: int) -> Tensor:
            if reverse is not None:
                z = check_draws(stream.draw(lambda: reverse(x, rows), rows), (rows, count(x), *shape)).to(device)
            elif source is not None:
                # rsample's noise can always be replaced
                sample = source.rsample if source.has_rsample else source.sample
                size = (rows,) if source.batch_shape else (rows, count(x))
                z = stream.draw(lambda: sample(torch.Size(size)), rows).detach().to(device)
            return coordinates.u(z)

        begin = NoiseStream(seed, PILOT_START, names)
        move = Noise(names, seed, PILOT_MOVE)
        steps = anneal(path, start(begin, pilots), betas, leapfrog, move, (0, pilots), steps=None).steps
        tally, accepted, at = Tally(chains), [], 0
        begin, move = NoiseStream(seed, START, names), Noise(names, seed, MOVE)
        for rows in cut_into_chunks(chains, x, chunk, _GRAPH):
            run = anneal(path, start(begin, rows), betas, leapfrog, move, (at, chains), steps=steps)
            tally.add(run.log_w)
            accepted.append(run.acceptance)
            at += rows
        sign = 1.0 if reverse is None else -1.0
        return {
            "log_likelihood": sign * tally.log_mean[chains],
            "ess": tally.ess(),
            "acceptance": torch.cat(accepted).mean(0),
            "step_size": steps.mean(0),
            "nonfinite": tally.nonfinite,
        }

    settings = {"chains": chains, "temperatures": temperatures, "leapfrog": leapfrog, "pilots": pilots}
    columns = ("log_likelihood", "ess", "acceptance", "step_size", "nonfinite")
    bound = "lower" if reverse is None else "upper"
    question = {"what": "ais", "version": 1, "seed": seed, "bound": bound, **settings, "prior": str(prior)}
    picks, own = (batch, ids), {"prior": prior, "reverse": reverse}
    table = tabulate(model, batches, anneal_batch, question, store, progress, picks=picks, columns=columns, **own)
    warnings = _list_doubts(table.values, chains)
    passes = 2 * (chains + pilots) * (1 + (temperatures - 1) * leapfrog)
    return Annealed(**table.as_result(*warnings), bound=bound, passes=passes)


class ChainEnds(NamedTuple):
    """Chains at the end of their way."""

    log_w: Tensor  # (chains, batch), float64
    acceptance: Tensor  # (chains, batch): the average over moves
    steps: Tensor  # (moves, batch): the step sizes used


def anneal(
    path: Path,
    u: Tensor,
    betas: list[float],
    leapfrog: int,
    noise: Noise,
    rows: tuple[int, int],
    *,
    steps: Tensor | None,
    first_step: float = 0.5,
    rate: float = _RATE,
) -> ChainEnds:
    """Take chains at u from ``betas[0]`` to ``betas[-1]``; these are ``rows[0]``, ... of ``rows[1]`` chains.

    ln w sums (beta_t - beta_{t-1}) times the log-ratio at z_{t-1}, which is ln p(x|z_{t-1}) from the prior, before the move
    that leaves beta_t's distribution as it is. Without ``steps`` the step sizes follow the acceptance as it comes (the
    pilots), from ``first_step`` on and at a ``rate``, else they are given.
    """
    chains, batch, size = len(u), u.shape[1], u[0, 0].numel()
    at = path(u)
    log_w = accepted = torch.zeros(chains, batch, dtype=torch.float64, device=u.device)
    used = torch.empty(len(betas) - 2, batch, dtype=u.dtype, device=u.device)
    log_step = u.new_full((batch,), math.log(first_step * size**-0.25))
    for t in range(1, len(betas)):
        log_w = log_w + (betas[t] - betas[t - 1]) * at.log_ratio
        if t == len(betas) - 1:
            break  # a last move would change no weight
        used[t - 1] = log_step.exp() if steps is None else steps[t - 1]
        first = (t - 1) * rows[1] + rows[0]
        momentum = noise.normal(first, chains, size, u.dtype).view(u.shape)
        chance = noise.uniform(first, chains, 2, u.dtype)
        step = used[t - 1] * (0.8 + 0.4 * chance[..., 1])  # a fixed step could meet the period of an orbit
        new, log_ratio = move_chains(path, at, momentum, step, betas[t], leapfrog)
        yes = chance[..., 0].double().log() < log_ratio  # false for NaN: a move that left the numbers is refused
        at = at.where(yes, new)
        accepted = accepted + yes
        if steps is None:
            taken = log_ratio.exp().clamp(max=1.0).nan_to_num(0.0).mean(0)
            log_step = (log_step + rate * (taken - _TARGET).to(u.dtype)).clamp(-10.0, 1.0)
    return ChainEnds(log_w, accepted / max(1, len(betas) - 2), used)


def make_schedule(temperatures: int) -> list[float]:
    """beta from exactly 0 to exactly 1, slow at both ends, where the distributions change fastest.

    >>> [round(beta, 3) for beta in make_schedule(4)]
    [0.0, 0.105, 0.5, 0.895, 1.0]
    """
    ends = 1 / (1 + math.exp(4.0)), 1 / (1 + math.exp(-4.0))
    sigmoid = [1 / (1 + math.exp(4.0 - 8.0 * t / temperatures)) for t in range(temperatures + 1)]
    return [0.0, *((value - ends[0]) / (ends[1] - ends[0]) for value in sigmoid[1:-1]), 1.0]


def check_draws(z: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(z.shape) != shape:
        raise ValueError(f"reverse must return posterior samples of shape {shape}, got {tuple(z.shape)}")
    return z


def _list_doubts(values: Mapping[str, np.ndarray], chains: int) -> list[str]:
    lines = []
    acceptance, ess = float(values["acceptance"].mean()), float(np.median(values["ess"]))
    if not 0.4 < acceptance < 0.95:
        lines.append(
            f"AIS: {acceptance:.0%} of the moves were accepted, where about 65% is best; use more temperatures, so that "
            "the step size has time to adapt"
        )
    if chains > 3 and ess < chains / 5:
        lines.append(
            f"AIS: half of the examples rest on fewer than {ess:.1f} of {chains} chains; use more temperatures"
        )
    return [*lines, *list_nonfinite(values, "AIS")]
