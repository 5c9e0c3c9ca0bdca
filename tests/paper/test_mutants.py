"""Each wrong implementation that is easy to write and easy to believe is planted, and the check that should catch it does.

The mutants are in mutants_*.py. One that survives is a missing test. The file of a check runs it on the correct code.
"""

import pytest

from tests.paper import mutants_beyond, mutants_of_gradients, mutants_of_values
from tests.paper.planting import MUTANTS


@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_is_caught(name, monkeypatch):
    plant, check, args = MUTANTS[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check(*args)


@pytest.mark.parametrize("module", [mutants_of_values, mutants_of_gradients, mutants_beyond])
def test_every_mutant_of_the_module_is_tried(module):
    planted = [name for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__]
    assert len(planted) >= 7 and set(planted) <= set(MUTANTS)
