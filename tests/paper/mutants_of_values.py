"""Mutants whose values are wrong: biased estimates, wrong steps, missing draws."""

import math
from dataclasses import replace

import torch

from bsvi import (
    METHODS,
    SVI,
    DiagonalGaussian,
    Objective,
    Uniform,
    graphs,
    refinement,
    responsibilities,
    trajectory,
)
from tests.paper.planting import mutant, with_bound, wrapping
from tests.paper.test_objectives import check_a_weight_that_is_not_finite_counts_as_zero
from tests.paper.test_t1_theorem_1_unbiased import check_unbiased
from tests.paper.test_t3_weights_and_steps import check_weights_and_steps
from tests.paper.test_t5_ordering import check_ordering
from tests.paper.test_t15_counts import check_counts
from tests.paper.test_t16_batch_independence import check_batch_independence

# --- seen by T1: the estimate of p(x) is biased -----------------------------------------------------------------------


@mutant(check_unbiased)
def weight_under_the_next_lambda(mp):
    def walk(original, self, model, *args, **kwargs):
        steps = list(original(self, model, *args, **kwargs))
        for i, step in enumerate(steps):
            w = step.weighed
            log_q = model.posterior(steps[min(i + 1, len(steps) - 1)].lambda_).log_prob(w.z)
            log_w = w.log_lik + model.log_prior(w.z.flatten(0, 1)).view_as(log_q) - log_q
            yield step._replace(weighed=w._replace(log_w=log_w))

    wrapping(mp, SVI, "walk", walk)


@mutant(check_unbiased)
def the_same_noise_at_every_step(mp):
    def rsample_and_log_prob(self, sample_shape=()):
        eps = torch.randn(
            (*sample_shape, *self.loc.shape), generator=torch.Generator().manual_seed(1), dtype=self.loc.dtype
        )
        z = self.loc + (0.5 * self.log_var).exp() * eps
        return z, self.log_prob(z)

    mp.setattr(DiagonalGaussian, "rsample_and_log_prob", rsample_and_log_prob)


@mutant(check_unbiased)
def closed_form_kl_in_the_weight(mp):
    latest = []

    def draw(original, q, samples, batch):
        latest[:] = [q]
        return original(q, samples, batch)

    def weigh(original, model, x, drawn, beta=1.0, recompute=False):
        weighed = original(model, x, drawn, beta, recompute)
        return weighed._replace(log_w=weighed.log_lik - beta * model.kl(latest[0]))

    wrapping(mp, refinement, "draw", draw)
    wrapping(mp, graphs, "weigh_draw", weigh)


@mutant(check_unbiased)
def log_q_without_its_log_determinant(mp):
    wrapping(mp, DiagonalGaussian, "_log_prob", lambda original, q, s: original(q, s) + 0.5 * q.log_var.sum(-1))


@mutant(check_unbiased)
def annealed_beta_left_in_evaluation(mp):
    wrapping(mp, Objective, "forward", lambda original, self, model, x, beta=1.0: original(self, model, x, 0.9))


@mutant(check_unbiased)
def mean_of_logs(mp):
    with_bound(mp, lambda log_w, log_pi: (log_pi.exp()[:, None] * log_w).sum(0))


@mutant(check_unbiased)
def divided_by_k(mp):
    mp.setattr(Uniform, "forward", lambda self, draws: torch.full((draws,), -math.log(draws - 1), dtype=torch.float64))


@mutant(check_unbiased)
def not_divided_at_all(mp):
    mp.setattr(Uniform, "forward", lambda self, draws: torch.zeros(draws, dtype=torch.float64))


@mutant(check_unbiased)
def best_step_instead_of_the_average(mp):
    with_bound(mp, lambda log_w, log_pi: log_w.max(0).values)


@mutant(check_unbiased)
def best_of_two_restarts(mp):
    def forward(original, self, model, x, beta=1.0):
        first, second = original(self, model, x, beta), original(self, model, x, beta)
        return replace(first, bound=torch.maximum(first.bound, second.bound))

    wrapping(mp, Objective, "forward", forward)


@mutant(check_unbiased)
def value_of_the_resampled_term(mp):
    with_bound(mp, lambda log_w, log_pi: (responsibilities(log_w, log_pi) * log_w).sum(0))


# --- seen by T3 and T5: the steps are wrong, the bound is still one ---------------------------------------------------


@mutant(check_weights_and_steps)
def momentum_ignored(mp):
    mp.setattr(SVI, "ascend", lambda self, lambda_, gradient, state: (lambda_ + self.lr * gradient, None))


@mutant(check_weights_and_steps)
def descent_instead_of_ascent(mp):
    wrapping(mp, SVI, "ascend", lambda original, self, lambda_, g, state: original(self, lambda_, -g, state))


@mutant(check_weights_and_steps)
def no_clipping(mp):
    mp.setattr(SVI, "clipped", lambda self, gradient, q: gradient)


@mutant(check_weights_and_steps)
def mean_and_log_variance_clipped_together(mp):
    mp.setattr(DiagonalGaussian, "blocks", 1)


@mutant(check_ordering)
def no_movement(mp):
    mp.setattr(SVI, "ascend", lambda self, lambda_, gradient, state: (lambda_, None))


@mutant(check_batch_independence)
def clipping_coupled_over_the_batch(mp):
    mp.setitem(refinement._CLIP_AXES, "example", (0, -1))


# --- seen by T15 and by the test of weights that are not finite: draws that are missing -------------------------------


@mutant(check_counts, "bsvi")
def first_weight_dropped(mp):
    def trajectory_(original, self, model, x, beta):
        self.rows, self.lambda_, self.proposals = [row[1:] for row in self.rows], self.lambda_[1:], self.proposals - 1
        self.attached = {}
        return original(self, model, x, beta)

    wrapping(mp, trajectory.Buffer, "trajectory", trajectory_)


@mutant(check_counts, "bsvi")
def last_weight_dropped(mp):
    def trajectory_(original, self, model, x, beta):
        self.rows, self.lambda_, self.proposals = [row[:-1] for row in self.rows], self.lambda_[:-1], self.proposals - 1
        self.attached = {}
        return original(self, model, x, beta)

    wrapping(mp, trajectory.Buffer, "trajectory", trajectory_)


@mutant(check_counts, "svi")
def k_prime_forgotten(mp):
    mp.setitem(METHODS, "svi", replace(METHODS["svi"], draws=METHODS["bsvi"].draws))


@mutant(check_counts, "bsvi-ds")
def one_draw_for_both_under_double_sampling(mp):
    mp.setitem(METHODS, "bsvi-ds", METHODS["bsvi"])


@mutant(check_a_weight_that_is_not_finite_counts_as_zero)
def draws_that_failed_are_forgotten(mp):
    def bound(log_w, log_pi):
        log_pi = torch.where(torch.isfinite(log_w), log_pi[:, None], -math.inf).log_softmax(0)
        return torch.logsumexp(log_pi + log_w, 0)

    with_bound(mp, bound)
