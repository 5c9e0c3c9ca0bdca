"""The methods: the paper's eight and those beyond it, one row each. Imports no torch, so that everyone can read it.

A row says what the method is made of, what it is called, what it is for and how figures draw it. ``bsvi.objective(name)``
builds it. The objects that a row is made of are asked of ``bsvi`` when they are needed: ``bsvi.SVI`` brings torch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import bsvi
from bsvi.tables.table import Table

RATES_LR = 0.05  # of ln rho: at a weight's 1e-3 the rates are still near their start after a thousand updates


@dataclass(frozen=True)
class Look:
    """How one method is drawn: its colour on white, its colour on dark, line and marker."""

    colour: str = "#404041"
    dark: str = "#d0d0d0"
    line: str = "-"
    marker: str = "o"


@dataclass(frozen=True)
class Method:
    """One row; ``k`` is the paper's k = 9, and k' = k + 1 (section 6.1).

    label      its name in tables and figures
    draws      where draws come from: a function of k and of the SVI settings that returns a refinement
    pi         the buffer weight: a function of the number of weights, k + 1
    theta      what theta learns from: a rule, or a function that returns one
    use_when   the reason to choose it, in a few words
    look       how figures draw it; colours of two methods must differ
    paper      whether it is one of the paper's eight; reports keep the others apart
    buffer     which proposals of a walk have weight: "" (there is no walk), "last", "uniform" or "learned"
    end_to_end whether its refinement is trained with the model, so that the encoder alone says little about it
    timed_as   the method whose step, with more or fewer passes of the decoder, takes as long; "": it is timed itself
    """

    label: str
    draws: Callable[[int, "bsvi.SVI"], Any]
    pi: Callable[[int], Any]
    theta: Any
    use_when: str = ""
    look: Look = Look()
    paper: bool = False
    buffer: Literal["", "last", "uniform", "learned"] = ""
    end_to_end: bool = False
    timed_as: str = ""


def _uniform(weights: int) -> Any:
    return bsvi.Uniform()


def _walk(k: int, svi: "bsvi.SVI") -> Any:
    return replace(svi, steps=k)


def _make_end_to_end(k: int, svi: "bsvi.SVI", learned: bool = True) -> Any:
    walk = replace(svi, steps=k)
    return bsvi.EndToEnd(walk, bsvi.Rates(walk, learned))


def _network(k: int, svi: "bsvi.SVI") -> Any:
    return bsvi.EndToEnd(replace(svi, steps=k), bsvi.Network(), second_order=False)


METHODS: Table[Method] = Table(
    "method",
    {
        "vae": Method(
            label="VAE",
            draws=lambda k, svi: bsvi.Amortized(1),
            pi=_uniform,
            theta=lambda: bsvi.AllDraws(),
            use_when="updates must be cheap",
            look=Look("#5f5f5e", "#b4b4b4", "-", "o"),
            paper=True,
        ),
        "iwae": Method(
            label="IWAE-k′",
            draws=lambda k, svi: bsvi.Amortized(k + 1),
            pi=_uniform,
            theta=lambda: bsvi.AllDraws(),
            use_when="small decoder, binary data",
            look=Look("#cc79a7", "#e69ac4", "-.", "s"),
            paper=True,
        ),
        "svi": Method(
            label="SVI-k′",
            draws=lambda k, svi: _walk(k + 1, svi),
            pi=lambda weights: bsvi.Last(),
            theta=lambda: bsvi.LastDraw(),
            use_when="you need the baseline",
            look=Look("#009e73", "#35c99f", "-", "^"),
            paper=True,
            buffer="last",
            timed_as="bsvi-sir",  # with one more step of refinement and one call less
        ),
        "bsvi": Method(
            label="BSVI-k",
            draws=_walk,
            pi=_uniform,
            theta=lambda: bsvi.AllDraws(),
            use_when="memory is no concern",
            look=Look("#0072b2", "#5aaeea", "-", "D"),
            paper=True,
            buffer="uniform",
        ),
        "bsvi-ds": Method(
            label="BSVI-k-DS",
            draws=lambda k, svi: replace(svi, steps=k, double_sampling=True),
            pi=_uniform,
            theta=lambda: bsvi.AllDraws(),
            use_when="you need Corollary 1",
            look=Look("#56b4e9", "#9ad6f7", ":", "P"),
            paper=True,
            buffer="uniform",
        ),
        "bsvi-pi": Method(
            label="BSVI-k-π",
            draws=_walk,
            pi=lambda weights: bsvi.Learned(weights),
            theta=lambda: bsvi.AllDraws(),
            use_when="you study the weights",
            look=Look("#4b3fa8", "#aca2f5", "--", "X"),
            paper=True,
            buffer="learned",
            timed_as="bsvi",  # pi's k + 1 numbers cost nothing
        ),
        "bsvi-sir": Method(
            label="BSVI-k-SIR",
            draws=_walk,
            pi=_uniform,
            theta=lambda: bsvi.Resampled(),
            use_when="**in doubt**",
            look=Look("#d55e00", "#ff8f50", "-", "v"),
            paper=True,
            buffer="uniform",
        ),
        "bsvi-sir-pi": Method(
            label="BSVI-k-SIR-π",
            draws=_walk,
            pi=lambda weights: bsvi.Learned(weights),
            theta=lambda: bsvi.Resampled(),
            use_when="you study the weights",
            look=Look("#b8860b", "#f0c04e", "--", "*"),
            paper=True,
            buffer="learned",
            timed_as="bsvi-sir",
        ),
        "vae-stl": Method(
            label="VAE-STL",
            draws=lambda k, svi: bsvi.Amortized(1, dreg=True),
            pi=_uniform,
            theta=lambda: bsvi.AllDraws(),
            use_when="q is close to the posterior",
            look=Look("#8c6d5a", "#cbb09f", "--", "o"),
            timed_as="vae",
        ),
        "iwae-dreg": Method(
            label="IWAE-k′-DReG",
            draws=lambda k, svi: bsvi.Amortized(k + 1, dreg=True),
            pi=_uniform,
            theta=lambda: bsvi.AllDraws(),
            use_when="`iwae` with many draws",
            look=Look("#a1386f", "#f27fb9", "--", "s"),
            timed_as="iwae",
        ),
        "sa-vae": Method(
            label="SA-VAE-k′",
            draws=lambda k, svi: _make_end_to_end(k + 1, svi, learned=False),
            pi=lambda weights: bsvi.Last(),
            theta=lambda: bsvi.AllDraws(),
            use_when="you need the baseline, end to end",
            look=Look("#3d7a3a", "#86cf82", "--", "^"),
            end_to_end=True,
            buffer="last",
        ),
        "bsvi-e2e": Method(
            label="BSVI-k-E2E",
            draws=_make_end_to_end,
            pi=_uniform,
            theta=lambda: bsvi.AllDraws(),
            use_when="the best model counts, and the decoder is small",
            look=Look("#b3001b", "#ff6b7d", "-", "h"),
            end_to_end=True,
            buffer="uniform",
        ),
        "iterative": Method(
            label="Iterative-k′",
            draws=lambda k, svi: _network(k + 1, svi),
            pi=lambda weights: bsvi.Last(),
            theta=lambda: bsvi.AllDraws(),
            use_when="you need the baseline, by a network",
            look=Look("#5b7f00", "#b5dc4c", ":", "<"),
            end_to_end=True,
            buffer="last",
        ),
        "iterative-bsvi": Method(
            label="Iterative-k-BSVI",
            draws=_network,
            pi=_uniform,
            theta=lambda: bsvi.AllDraws(),
            use_when="nothing may be differentiated twice",
            look=Look("#007a87", "#4fd0dd", ":", ">"),
            end_to_end=True,
            buffer="uniform",
        ),
    },
)


def find_label(method: str) -> str:
    """The method's name in tables and figures; of one that no row is about, the name itself.

    >>> find_label("bsvi-sir"), find_label("somebody-elses")
    ('BSVI-k-SIR', 'somebody-elses')
    """
    return METHODS[method].label if method in METHODS else method


METHODS_HELP = "all (the paper's eight), beyond (the others), or names with commas: vae,svi,bsvi-sir"


def choose_methods(text: str, phases: bool = False) -> tuple[str, ...]:
    """The names that a flag asks for: names with commas, ``all`` for the paper's eight, ``beyond`` for the other rows.

    With ``phases`` also methods in turn, ``vae:8000+bsvi-sir:2000``, which the run itself looks up.

    >>> choose_methods("svi,vae,svi"), len(choose_methods("all"))
    (('svi', 'vae'), 8)
    """
    groups = {
        "all": [name for name, row in METHODS.items() if row.paper],
        "beyond": [name for name, row in METHODS.items() if not row.paper],
    }
    names = [name for word in text.split(",") for name in groups.get(word, [word])]
    for name in names:
        if not (phases and ":" in name):
            METHODS.find(name)
    return tuple(dict.fromkeys(names))
