"""The paper's claims, each as one line: claim, difference, interval, and whether it holds in these runs."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from bsvi.report import measures, paper
from bsvi.report.cells import format_number
from bsvi.report.experiments import ExperimentRuns
from bsvi.report.intervals import FEWEST_SEEDS, Interval
from bsvi.report.measures import Measurement
from bsvi.tables.methods import METHODS, find_label

HOLDS, NOT_SHOWN, CONTRADICTED = "holds", "not shown", "contradicted"
# "Close" and "at least" need a smallest difference that matters. The largest one that the paper calls not appreciable
# is 0.26% of the log-likelihood (SVHN, BSVI-k-π against BSVI-k); estimates of one model's likelihood are held tighter.
MARGIN = 0.003
MARGIN_OF_ESTIMATES = 0.0003
MARGIN_OF_TIME = math.log(1.1)
_LEARNED = tuple(name for name, row in METHODS.items() if row.paper and row.buffer == "learned")
_BUFFERED = tuple(name for name, row in METHODS.items() if row.paper and row.buffer in ("uniform", "learned"))


@dataclass(frozen=True)
class Claim:
    """What the paper says, where, how it is measured, and what would settle it.

    kind    'greater' (above 0), 'at least' (above -margin) or 'close' (within the margin)
    margin  a share of the experiment's log-likelihood, or a number where `relative` is False
    """

    text: str
    where: str
    kind: str
    measure: Callable[[ExperimentRuns], Measurement]
    score: str = ""  # the paper's own difference is this column's, `method` minus `other`
    method: str = ""
    other: str = ""
    margin: float = 0.0
    relative: bool = True
    ratio: bool = False  # the difference is one of logarithms, shown as a ratio
    unit: str = "nats"
    what: str = ""  # what the difference is between, where it is not `method` minus `other`
    beyond: bool = False  # the paper does not say it, and has no number for it

    @property
    def subject(self) -> str:
        """What is measured, in words: 'SVI-k′ minus BSVI-k, Reconstruction*'."""
        score = paper.SCORES.get(self.score, "")
        return self.what or f"{find_label(self.method)} minus {find_label(self.other)}, {score}"


@dataclass(frozen=True)
class ClaimResult:
    """One claim as these runs show it."""

    claim: Claim
    interval: Interval | None
    margin: float
    verdict: str
    note: str
    paper: str  # the paper's own difference, '' where it prints none


def reach_verdict(kind: str, interval: Interval | None, margin: float) -> str:
    """'holds' if the whole interval says so, 'contradicted' if the whole interval denies it, else 'not shown'.

    With one seed the interval leaves out the luck of training, and two may agree by luck: nothing is shown either way.

    >>> reach_verdict("greater", Interval(0.5, 0.2, 0.8, seeds=4), 0.0), reach_verdict("close", Interval(0.5, 0.2, 0.8, 4), 0.3)
    ('holds', 'not shown')
    """
    if interval is None or not interval.knows_seeds or not math.isfinite(interval.low + interval.high):
        return NOT_SHOWN
    low, high = interval.low, interval.high
    if kind == "greater":
        return HOLDS if low > 0 else CONTRADICTED if high < 0 else NOT_SHOWN
    if kind == "at least":
        return HOLDS if low >= -margin else CONTRADICTED if high < -margin else NOT_SHOWN
    if kind == "close":
        return (
            HOLDS
            if -margin <= low and high <= margin
            else CONTRADICTED
            if low > margin or high < -margin
            else NOT_SHOWN
        )
    raise ValueError(f"a claim is 'greater', 'at least' or 'close', got {kind!r}")


def check_claims(experiment: ExperimentRuns, claims: tuple[Claim, ...] | None = None) -> list[ClaimResult]:
    """Every claim of the paper, or those given, against one experiment's runs."""
    scale = _scale(experiment)
    lines = []
    for claim in CLAIMS if claims is None else claims:
        measured = claim.measure(experiment)
        margin = claim.margin * scale if claim.relative else claim.margin
        found = reach_verdict(claim.kind, measured.interval, margin)
        note = measured.note
        if measured.interval is not None and not measured.interval.knows_seeds and "one seed" not in note:
            seeds = "one seed" if measured.interval.seeds < 2 else "two seeds"
            note = "; ".join(filter(None, [note, f"{seeds}, where a claim needs {FEWEST_SEEDS}"]))
        lines.append(
            ClaimResult(claim, measured.interval, margin, found, note, _describe_paper(claim, experiment.dataset))
        )
    return lines


def _scale(experiment: ExperimentRuns) -> float:
    alike = [row for row in experiment.rows if not row.variant]
    means = [abs(mean) for row in alike for mean in row.means("test", "log_likelihood")]
    if not means:  # before the first evaluation, the validation bounds are of the same size
        bests = [(run.result or {}).get("best_valid_bound") for run in experiment.runs]
        means = [abs(float(best)) for best in bests if isinstance(best, int | float) and math.isfinite(best)]
    return sum(means) / len(means) if means else 0.0


def _describe_paper(claim: Claim, dataset: str | None) -> str:
    """The paper's difference on this data set; on all three, in its order, where the data are not the paper's."""
    if claim.beyond:
        return ""
    names = [dataset] if dataset else list(paper.TITLES)
    parts = [format_number(_find_paper_difference(claim, name), sign=True) for name in names if claim.score]
    return " / ".join(parts)


def _find_paper_difference(claim: Claim, dataset: str) -> float:
    if claim.score == "gap":
        gaps = [
            paper.find_difference(dataset, "log_likelihood", claim.method, claim.other, s) for s in ("train", "test")
        ]
        return (gaps[0] or 0.0) - (gaps[1] or 0.0)
    if claim.score == "tightness":
        rows = paper.read_iwae_tables()[dataset].rows.values()
        return sum(row[""].value - row["2500"].value for row in rows) / len(rows)
    return paper.find_difference(dataset, claim.score, claim.method, claim.other) or 0.0


def make_score_claim(
    text: str, where: str, kind: str, method: str, other: str, score: str = "log_likelihood", *, beyond: bool = False
) -> Claim:
    """A claim about the difference in a score of two methods."""

    def measure(experiment: ExperimentRuns) -> Measurement:
        return measures.measure_difference(experiment, score, method, other)

    margin = 0.0 if kind == "greater" else MARGIN
    return Claim(text, where, kind, measure, score, method, other, margin, beyond=beyond)


CLAIMS = (
    make_score_claim("BSVI-k beats SVI-k′", "6.2, app. B", "greater", "bsvi", "svi"),
    make_score_claim("BSVI-k-SIR beats SVI-k′", "6.2", "greater", "bsvi-sir", "svi"),
    make_score_claim("SVI-k′ beats the VAE", "6.2", "greater", "svi", "vae"),
    make_score_claim("BSVI-k is at least as good as IWAE-k′", "6.2, app. B", "at least", "bsvi", "iwae"),
    Claim(
        "BSVI-500 is at least as tight as IWAE-2500",
        "app. C",
        "at least",
        measures.measure_tightness,
        score="tightness",
        what="BSVI-500 minus IWAE-2500 on the same models",
        margin=MARGIN_OF_ESTIMATES,
    ),
    make_score_claim("BSVI-k-SIR is close to BSVI-k", "5, app. B", "close", "bsvi-sir", "bsvi"),
    make_score_claim("Double sampling makes little difference", "4.2, 6.2", "close", "bsvi-ds", "bsvi"),
    make_score_claim("Learning π makes little difference", "6.2, 6.5", "close", "bsvi-pi", "bsvi"),
    make_score_claim("Learning π makes little difference with SIR", "6.2, 6.5", "close", "bsvi-sir-pi", "bsvi-sir"),
    Claim(
        "SIR regularises: BSVI-k overfits more than BSVI-k-SIR",
        "6.3",
        "greater",
        lambda experiment: measures.measure_gap_difference(experiment, "bsvi", "bsvi-sir"),
        score="gap",
        what="training minus test log-likelihood, BSVI-k minus BSVI-k-SIR",
        method="bsvi",
        other="bsvi-sir",
    ),
    make_score_claim("KL* of BSVI-k is above that of SVI-k′", "6.4, app. B", "greater", "bsvi", "svi", "kl"),
    make_score_claim("KL* of BSVI-k-SIR is above that of SVI-k′", "6.4", "greater", "bsvi-sir", "svi", "kl"),
    make_score_claim(
        "Reconstruction* of BSVI-k is below that of SVI-k′",
        "6.4, app. B",
        "greater",
        "svi",
        "bsvi",
        "reconstruction",
    ),
    make_score_claim(
        "Reconstruction* of BSVI-k-SIR is below that of SVI-k′",
        "6.4",
        "greater",
        "svi",
        "bsvi-sir",
        "reconstruction",
    ),
    Claim(
        "In training BSVI-k is at least SVI-k",
        "6.5",
        "at least",
        lambda experiment: measures.measure_in_training(experiment, "bsvi_k", "svi_k", _BUFFERED),
        what="BSVI-k bound minus SVI-k bound, second half of training, BSVI methods",
        margin=MARGIN_OF_ESTIMATES,
    ),
    Claim(
        "In training SVI-k is at least SVI-0",
        "6.5",
        "at least",
        lambda experiment: measures.measure_in_training(experiment, "svi_k", "svi_0", _BUFFERED),
        what="SVI-k bound minus SVI-0 bound, second half of training, BSVI methods",
        margin=MARGIN_OF_ESTIMATES,
    ),
    Claim(
        "π moves to later proposals: buffer weight average above 1/2",
        "6.5",
        "greater",
        lambda experiment: measures.measure_in_training(experiment, "buffer_weight_average", 0.5, _LEARNED),
        what="buffer weight average minus 1/2, second half of training, learned π",
        unit="",
    ),
    Claim(
        "BSVI-k-SIR takes the same time per step as SVI-k′ (within 10%)",
        "5",
        "close",
        lambda experiment: measures.measure_time_ratio(experiment, "bsvi-sir", "svi"),
        what="seconds per step, BSVI-k-SIR divided by SVI-k′",
        margin=MARGIN_OF_TIME,
        relative=False,
        ratio=True,
        unit="times",
    ),
)
