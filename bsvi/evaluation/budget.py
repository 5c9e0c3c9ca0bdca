"""What ``refine_anneal`` spends its passes of the decoder on."""

from dataclasses import dataclass, replace

from bsvi.evaluation.arguments import check_at_least_1
from bsvi.refinement import whole

LEAST = 200  # passes, of which a climb and a few temperatures can be made
WIDEST = 256  # numbers of z up to which correlations are learned: their cost grows with the cube


@dataclass(frozen=True)
class Budget:
    """What one example costs: ``passes`` of the decoder, where one with a gradient to z counts two.

    >>> Budget().passes, Budget(chains=4, temperatures=100).passes
    (983, 3525)
    """

    climb: int = 80  # Adam's steps to the best diagonal Gaussian ...
    samples: int = 2  # ... with as many draws each
    rounds: int = 6  # times that correlations are learned, from all gradients met so far
    draws: int = 15  # on which what a round has learned is judged, and from which the next one learns
    pilots: int = 1  # chains that find the step sizes and are thrown away
    chains: int = 2
    temperatures: int = 25
    leapfrog: int = 3  # gradient steps per move; one move per temperature

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "rounds":
                vars(self)[name] = check_at_least_1(name, value)
        vars(self).update(rounds=whole("rounds", self.rounds))
        if self.rounds < 0:
            raise ValueError(f"rounds must be at least 0, got {self.rounds}")

    def learns(self, size: int) -> bool:
        """Whether correlations of ``size`` numbers are learned: there must be more points than numbers, and not too many."""
        return self.rounds > 0 and size <= min(WIDEST, self.climb * self.samples - 2)

    @property
    def passes(self) -> int:
        """Of an example whose correlations are learned."""
        return self.cost(1)

    def cost(self, size: int) -> int:
        """Passes of the decoder for one example with ``size`` numbers in z."""
        judged = self.draws * (3 + 2 * self.rounds if self.learns(size) else 2)
        moves = 1 + (self.temperatures - 1) * self.leapfrog
        return 2 * self.climb * self.samples + judged + 2 * (self.pilots + self.chains) * moves


def plan_budget(passes: int, size: int) -> Budget:
    """What so many passes are best spent on, for ``size`` numbers in z; never more of them.

    >>> budget = plan_budget(10_000, 50)
    >>> budget.cost(50) <= 10_000 < budget.cost(50) + 2 * (budget.pilots + budget.chains) * budget.leapfrog
    True
    """
    if passes < LEAST:
        raise ValueError(f"passes must be at least {LEAST}, got {passes}; 1,000 cost as much as BSVI-500")
    climb = min(400, passes * 2 // 25)
    small = passes < 5000
    rounds, draws = (min(6, passes * 6 // 1000), 15) if small else (10, 50)
    chains, leapfrog = (2, 3) if small else (4, 5) if passes < 20_000 else (8, 6)
    least = Budget(climb=climb, rounds=rounds, draws=draws, chains=chains, leapfrog=leapfrog, temperatures=1)
    left = (passes - least.cost(size)) // (2 * (least.pilots + chains) * leapfrog)
    return replace(least, temperatures=max(1, 1 + left))
