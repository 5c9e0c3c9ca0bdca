"""How a wrong implementation is planted, and which check must then fail."""

from bsvi import Objective

MUTANTS = {}


def mutant(check, *args):
    """Register a function that plants a mutant, with the check that must fail for it."""

    def register(plant):
        MUTANTS[plant.__name__] = (plant, check, args)
        return plant

    return register


def with_bound(mp, bound):
    original = Objective.__init__

    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.bound = bound

    mp.setattr(Objective, "__init__", init)


def wrapping(mp, owner, name, change):
    """Replace owner.name by a function that gets the original first."""
    original = getattr(owner, name)
    mp.setattr(owner, name, lambda *args, **kwargs: change(original, *args, **kwargs))
