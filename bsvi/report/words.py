"""The results in sentences: what was run, which method is best and by how much, which claims hold, what to choose."""

from collections import Counter

from bsvi.report.cells import plain
from bsvi.report.claims import CONTRADICTED, HOLDS, NOT_SHOWN, Line
from bsvi.report.experiments import Experiment, Row
from bsvi.report.measures import rows_difference


def summary(experiment: Experiment, lines: list[Line]) -> list[str]:
    """The experiment's results, one sentence each."""
    sentences = [_scope(experiment)]
    best = best_row(experiment)
    if best is None:
        sentences.append("No run has test scores yet: `bsvi evaluate RUN` makes them.")
    else:
        sentences += [_best(experiment, best), *_against(experiment, best), *_choice(experiment, best)]
        sentences.append(_claims(lines))
    return sentences


def best_row(experiment: Experiment) -> Row | None:
    """The row with the highest mean test log-likelihood."""
    rows = [row for row in experiment.rows if row.means("test", "log_likelihood")]
    return max(rows, key=_likelihood, default=None)


def counts(lines: list[Line]) -> dict[str, int]:
    """How many claims hold, are not shown, are contradicted."""
    found = Counter(line.verdict for line in lines)
    return {verdict: found[verdict] for verdict in (HOLDS, NOT_SHOWN, CONTRADICTED)}


def _scope(experiment: Experiment) -> str:
    rows = experiment.rows
    seeds = sorted({len(row.runs) for row in rows})
    each = f"{_count(seeds[0], 'seed')} each" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds each"
    kind = "method" if all(not row.variant for row in rows) else "variant"
    text = f"{_count(len(rows), kind)} with {each}: {_count(len(experiment.runs), 'run')}"
    states = Counter(run.state for run in experiment.runs)
    if set(states) == {"scored"}:
        examples = {str(run.scores["test"].summary.get("examples")) for run in experiment.runs if "test" in run.scores}
        return f"{text}, all scored{f' on {examples.pop()} test examples' if len(examples) == 1 else ''}."
    order = ("scored", "trained", "running", "stopped", "no metrics yet")
    names = {
        "trained": "trained but not scored",
        "stopped": "stopped before the end",
        "no metrics yet": "without metrics yet",
    }
    return f"{text} ({', '.join(f'{states[s]} {names.get(s, s)}' for s in order if states[s])})."


def _best(experiment: Experiment, best: Row) -> str:
    level = plain(_likelihood(best))
    near = []
    for row in experiment.rows:
        interval = rows_difference(best, row, "log_likelihood").interval if row is not best else None
        if interval is not None and not (interval.low > 0 and interval.knows_seeds):
            near.append(row.label)
    text = f"{best.label} has the highest test log-likelihood, {level} nats"
    return f"{text}; not clearly below it: {', '.join(near)}." if near else f"{text}, clearly above every other."


def _against(experiment: Experiment, best: Row) -> list[str]:
    parts = []
    for method in ("svi", "vae"):
        row = experiment.row(method)
        interval = (
            rows_difference(best, row, "log_likelihood").interval if row is not None and row is not best else None
        )
        if interval is not None and row is not None:
            ends = f" [{plain(interval.low)}, {plain(interval.high)}]" if interval.low == interval.low else ""
            parts.append(f"{plain(interval.mean)}{ends} nats above {row.label}")
    return [f"It is {' and '.join(parts)}."] if parts else []


def _choice(experiment: Experiment, best: Row) -> list[str]:
    """The cheapest row that is not clearly worse than the best: what a user with a small budget should try."""
    # with one seed nothing is clearly worse, and there is nothing to choose
    if all(len(row.runs) < 2 for row in experiment.rows):
        return []
    cheap = []
    for row in experiment.rows:
        interval = rows_difference(best, row, "log_likelihood").interval if row is not best else None
        times = [value for value in (run.per_step("seconds") for run in row.runs) if value]
        if times and (row is best or (interval is not None and interval.low <= 0 and interval.knows_seeds)):
            cheap.append((sum(times) / len(times), row))
    if not cheap:
        return []
    seconds, row = min(cheap, key=lambda pair: pair[0])
    vae = experiment.row("vae")
    times = [value for value in (run.per_step("seconds") for run in vae.runs) if value] if vae else []
    cost = (
        f", at {seconds / (sum(times) / len(times)):.1f} times the VAE's time per step"
        if times and row is not vae
        else ""
    )
    return [f"{'It is also' if row is best else f'{row.label} is'} the cheapest of these per step{cost}."]


def _claims(lines: list[Line]) -> str:
    found = counts(lines)
    verbs = [f"{n} {one if n == 1 else many}" for n, one, many in zip(found.values(), _IS, _ARE, strict=True)]
    text = f"Of {len(lines)} claims of the paper {verbs[0]}, {verbs[1]} and {verbs[2]}"
    bad = [line.claim.text for line in lines if line.verdict == CONTRADICTED]
    single = (
        " With one seed nothing can be shown."
        if all(line.interval is None or line.interval.seeds < 2 for line in lines)
        else ""
    )
    return f"{text}{': ' + '; '.join(bad) if bad else ''}.{single}"


_IS = ("holds", "is not shown", "is contradicted")
_ARE = ("hold", "are not shown", "are contradicted")


def _likelihood(row: Row) -> float:
    means = row.means("test", "log_likelihood")
    return sum(means) / len(means)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
