"""Claims that are not the paper's: about the methods beyond it, and about equal time, where the paper counts updates."""

from functools import partial

from bsvi.report.claims import ClaimResult, check_claims, make_score_claim
from bsvi.report.experiments import ExperimentRuns

_claim = partial(make_score_claim, beyond=True)

BEYOND = (  # of equally many updates
    _claim("End to end beats decoupled training, buffered", "theory", "greater", "bsvi-e2e", "bsvi-sir"),
    _claim("End to end beats decoupled training, last draw", "Kim et al.", "greater", "sa-vae", "svi"),
    _claim("The buffer beats the last draw end to end, too", "theory", "greater", "bsvi-e2e", "sa-vae"),
    _claim("The buffer beats the last draw by a network, too", "theory", "greater", "iterative-bsvi", "iterative"),
    _claim("Learned rates beat a network", "theory", "greater", "bsvi-e2e", "iterative-bsvi"),
    _claim("DReG is at least as good as IWAE", "Tucker et al.", "at least", "iwae-dreg", "iwae"),
    _claim("STL is at least as good as the VAE", "Roeder et al.", "at least", "vae-stl", "vae"),
)

EQUAL_TIME = (  # of equally many seconds of updates (`--seconds`, `bsvi sweep --equal-time`), which the paper never compares
    _claim("At equal time end to end beats decoupled training", "theory", "greater", "bsvi-e2e", "bsvi-sir"),
    _claim("At equal time end to end beats the VAE", "theory", "greater", "bsvi-e2e", "vae"),
    _claim("At equal time end to end beats IWAE with DReG", "theory", "greater", "bsvi-e2e", "iwae-dreg"),
    _claim("At equal time BSVI-k-SIR beats the VAE", "theory", "greater", "bsvi-sir", "vae"),
    _claim("At equal time BSVI-k-SIR beats SVI-k′", "theory", "greater", "bsvi-sir", "svi"),
    _claim("At equal time the buffer beats the last draw end to end", "theory", "greater", "bsvi-e2e", "sa-vae"),
    _claim("At equal time IWAE-k′ beats the VAE", "Burda et al.", "greater", "iwae", "vae"),
    _claim("At equal time DReG is at least as good as IWAE", "Tucker et al.", "at least", "iwae-dreg", "iwae"),
)


def check_beyond(experiment: ExperimentRuns) -> list[ClaimResult]:
    """The claims beyond the paper of whose methods both have runs: of equally many updates, or of equal time."""
    present = {row.method for row in experiment.rows}
    claims = BEYOND if experiment.seconds is None else EQUAL_TIME
    return check_claims(experiment, tuple(claim for claim in claims if {claim.method, claim.other} <= present))
