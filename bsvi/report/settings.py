"""What decides a run's numbers: its settings, and the circumstances beside them."""

from typing import Any

from bsvi.report.records import ReportedRun
from bsvi.tables.methods import RATES_LR

_NOT_A_SETTING = {"seed", "seeds", "method", "out", "resume", "device", "threads", "name", "experiment"}
_NOT_A_SETTING |= {"log_every", "recompute"}  # no number depends on them

# Older runs do not name these settings of end-to-end methods: at its default a setting says as much as none.
_DEFAULTS = {"e2e.steps": None, "e2e.learned_rates": None, "e2e.rates_lr": RATES_LR, "e2e.finite_difference": False}


def read_settings(run: ReportedRun) -> dict[str, Any]:
    """The configuration with dotted names, without what may differ between runs of one row."""
    flat = dict(_flatten(run.part("config")))
    flat = {key: value for key, value in flat.items() if key not in _NOT_A_SETTING}
    flat = {key: value for key, value in flat.items() if key not in _DEFAULTS or value != _DEFAULTS[key]}
    if not flat.get("phases"):
        flat.pop("phases", None)  # older runs do not say that they have none
    flat.pop("steps" if flat.get("seconds") else "seconds", None)  # the limit by which no run ends
    origin = run.part("origin")
    if origin and origin.get("only_longer") is not True:  # a run that began elsewhere is no seed of those that did not
        flat["origin"] = f"{origin.get('how', 'from')} {origin.get('method', 'another run')}"
    if run.config.get("k") is None or flat.get("seconds"):  # in equal time each method may have a k of its own
        return flat
    return flat | {"k": run.config["k"]}


def read_circumstances(run: ReportedRun) -> dict[str, Any]:
    """What decides a run's numbers beside its settings, as far as it is known: data, updates, how test scores were made.

    A run that its own rule stopped early, or that has used up its seconds, has made the updates that its settings ask for.
    """
    found: dict[str, Any] = {}
    if run.part("data").get("sha256"):
        found["data"] = f"{run.part('data')['sha256']}"[:8]
    if (run.result is not None or run.scores) and (run.result or {}).get("stopped") not in ("early", "seconds"):
        found["updates"] = run.steps
    if "test" in run.scores:
        found |= {f"test {name}": value for name, value in run.scores["test"].made_by.items()}
        step, best = run.scores["test"].summary.get("checkpoint_step"), (run.result or {}).get("best_step")
        found["test weights"] = "the best" if step is None or best is None or step == best else "older ones"
    return found


def make_settings_key(run: ReportedRun) -> tuple[tuple[str, str], ...]:
    """The settings as a key of a dict."""
    return tuple(sorted((key, repr(value)) for key, value in read_settings(run).items()))


def _flatten(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in tree.items():
        pairs += _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return pairs
