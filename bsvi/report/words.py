"""The results in sentences: what was run, which method is best and by how much, which claims hold, what to choose."""

from collections import Counter

from bsvi.report.cells import format_number
from bsvi.report.claims import CONTRADICTED, HOLDS, NOT_SHOWN, ClaimResult
from bsvi.report.experiments import ExperimentRuns, Row
from bsvi.report.intervals import FEWEST_SEEDS
from bsvi.report.measures import measure_rows_difference
from bsvi.tables.methods import METHODS

MOST = 0.5  # of the images: from here on a high k-hat is told in the summary


def write_summary(
    experiment: ExperimentRuns, lines: list[ClaimResult], beyond: list[ClaimResult] | None = None
) -> list[str]:
    """The experiment's results, one sentence each; `beyond` are the claims that are not the paper's."""
    sentences = [_describe_scope(experiment)]
    best = find_best_row(experiment)
    if best is None:
        own = all(run.own for run in experiment.runs)
        how = "bsvi.evaluate(model, batches).save(FOLDER)" if own else "bsvi evaluate RUN"
        sentences.append(f"No run has test scores yet: `{how}` makes them.")
    else:
        sentences += [
            _describe_best(experiment, best),
            *_describe_choice(experiment, best),
            *_describe_others(experiment, best),
        ]
        sentences += _describe_trained_steps(experiment)
        sentences += [*_describe_doubts(experiment), *([_describe_claims(experiment, lines)] if lines else [])]
        sentences += [_describe_claims(experiment, beyond, "beyond the paper")] if beyond else []
    return sentences


def find_best_row(experiment: ExperimentRuns) -> Row | None:
    """The row with the highest mean test log-likelihood."""
    rows = [row for row in experiment.rows if row.means("test", "log_likelihood")]
    return max(rows, key=_likelihood, default=None)


def count_verdicts(lines: list[ClaimResult]) -> dict[str, int]:
    """How many claims hold, are not shown, are contradicted."""
    found = Counter(line.verdict for line in lines)
    return {verdict: found[verdict] for verdict in (HOLDS, NOT_SHOWN, CONTRADICTED)}


def _describe_scope(experiment: ExperimentRuns) -> str:
    rows = experiment.rows
    seeds = sorted({len(row.runs) for row in rows})
    each = _count(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    each += " each" if len(rows) > 1 else ""
    kind = "method" if all(not row.variant for row in rows) else "variant"
    text = f"{_count(len(rows), kind)} with {each}: {_count(len(experiment.runs), 'run')}"
    text += f" of {experiment.seconds:g} seconds of updates" if experiment.seconds is not None else ""
    states = Counter(run.state for run in experiment.runs)
    if set(states) == {"scored"}:
        examples = {str(run.scores["test"].summary.get("examples")) for run in experiment.runs if "test" in run.scores}
        every = "all " if len(experiment.runs) > 1 else ""
        return f"{text}, {every}scored{f' on {examples.pop()} test examples' if len(examples) == 1 else ''}."
    order = ("scored", "trained", "running", "stopped", "no metrics yet")
    names = {
        "trained": "trained but not scored",
        "stopped": "stopped before the end",
        "no metrics yet": "without metrics yet",
    }
    return f"{text} ({', '.join(f'{states[s]} {names.get(s, s)}' for s in order if states[s])})."


def _describe_best(experiment: ExperimentRuns, best: Row) -> str:
    level = format_number(_likelihood(best))
    if not _find_others(experiment, best):
        return f"{best.label} is alone with test scores: log-likelihood {level} nats."
    near, apart = _find_near(experiment, best)
    parts = [f"{best.label} has the highest test log-likelihood, {level} nats"]
    parts += [f"not clearly below it: {', '.join(row.label for row in near)}"] if near else []
    parts += [f"not comparable with it in pairs: {', '.join(row.label for row in apart)}"] if apart else []
    return f"{'; '.join(parts)}{', clearly above every other' if len(parts) == 1 else ''}."


def _find_others(experiment: ExperimentRuns, best: Row) -> list[Row]:
    return [row for row in experiment.rows if row is not best and row.means("test", "log_likelihood")]


def _find_near(experiment: ExperimentRuns, best: Row) -> tuple[list[Row], list[Row]]:
    """The rows that are not clearly below the best, and those that have no pairs with it."""
    near, apart = [], []
    for row in _find_others(experiment, best):
        interval = measure_rows_difference(best, row, "log_likelihood").interval
        if interval is None:
            apart.append(row)
        elif not (interval.low > 0 and interval.knows_seeds):
            near.append(row)
    return near, apart


def _describe_others(experiment: ExperimentRuns, best: Row) -> list[str]:
    parts = []
    for method in ("svi", "vae"):
        row = experiment.find_row(method)
        interval = (
            measure_rows_difference(best, row, "log_likelihood").interval
            if row is not None and row is not best
            else None
        )
        if interval is not None and row is not None:
            ends = (
                f" [{format_number(interval.low)}, {format_number(interval.high)}]"
                if interval.low == interval.low
                else ""
            )
            parts.append(f"{format_number(interval.mean)}{ends} nats above {row.label}")
    return [f"{best.label} is {' and '.join(parts)}."] if parts else []


def _describe_choice(experiment: ExperimentRuns, best: Row) -> list[str]:
    """The cheapest row that is not clearly worse than the best: what a user with a small budget should try."""
    # with fewer seeds nothing is clearly worse, and there is nothing to choose
    if all(len(row.runs) < FEWEST_SEEDS for row in experiment.rows):
        return []
    near, _ = _find_near(experiment, best)
    cheap = [(row.pace, row) for row in (best, *near) if row.pace]
    vae = experiment.find_row("vae")
    if len(cheap) < len(near) + 1:  # of some nobody knows the time
        return []
    seconds, row = min(cheap, key=lambda pair: pair[0])
    ratio = f"{format_number(seconds / vae.pace)} times the VAE's time per step" if vae is not None and vae.pace else ""
    if not near:
        return [f"It takes {ratio}."] if ratio and best is not vae else []
    return [f"Of all these {row.label} is the cheapest per step{f', at {ratio}' if ratio and row is not vae else ''}."]


def _describe_doubts(experiment: ExperimentRuns) -> list[str]:
    """Whether the log-likelihoods themselves can be trusted: the one warning that nobody may miss."""
    runs = [run for run in experiment.runs if "test" in run.scores]
    parts = []
    for name, what in (("bsvi", "the log-likelihood"), ("iwae", "IWAE")):
        known = [share for run in runs if (share := run.scores["test"].share_of_high_khat(name)) is not None]
        most = [share for share in known if share > MOST]
        if most:
            shares = " to ".join(dict.fromkeys(f"{share:.0%}" for share in (min(most), max(most))))
            parts.append(f"for {what} in {len(most)} of {_count(len(known), 'run')} ({shares} of the images)")
    if not parts:
        return []
    return [
        f"Do not take these numbers as exact: Pareto k-hat is above 0.7 for most test images, {' and '.join(parts)}. "
        "A few draws decide such values, most likely too low: use a larger k, or compare with `bsvi evaluate --ais`."
    ]


def _describe_trained_steps(experiment: ExperimentRuns) -> list[str]:
    """That the encoder of a model trained end to end is only the start of its own refinement."""
    rows = [row.label for row in experiment.rows if row.method in METHODS and METHODS[row.method].end_to_end]
    if not rows:
        return []
    return [
        f"Do not judge {', '.join(rows)} by IWAE or the amortized ELBO of the encoder alone: it is only the start of steps that "
        "were trained with the model. `bsvi evaluate` starts where they end."
    ]


def _describe_claims(experiment: ExperimentRuns, lines: list[ClaimResult], whose: str = "of the paper") -> str:
    found = count_verdicts(lines)
    verbs = [f"{n} {one if n == 1 else many}" for n, one, many in zip(found.values(), _IS, _ARE, strict=True)]
    text = f"Of {_count(len(lines), 'claim')} {whose} {verbs[0]}, {verbs[1]} and {verbs[2]}"
    bad = [line.claim.text for line in lines if line.verdict == CONTRADICTED]
    most = max(len(row.runs) for row in experiment.rows)
    few = f" With {'one seed' if most == 1 else 'two seeds'} nothing can be shown." if most < FEWEST_SEEDS else ""
    return f"{text}{': ' + '; '.join(bad) if bad else ''}.{few}"


_IS = ("holds", "is not shown", "is contradicted")
_ARE = ("hold", "are not shown", "are contradicted")


def _likelihood(row: Row) -> float:
    means = row.means("test", "log_likelihood")
    return sum(means) / len(means)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
