"""Plants each wrong implementation that is easy to write and easy to believe, and shows which check catches it.

A mutant that survives is a missing test. Every check passes on the correct code (its own file runs it).
"""

import math
from dataclasses import replace

import pytest
import torch

from bsvi import (
    METHODS,
    SVI,
    AllDraws,
    Amortized,
    DiagonalGaussian,
    Last,
    Objective,
    Uniform,
    amortized,
    draws,
    graphs,
    objective,
    refinement,
    responsibilities,
    theta,
    trajectory,
)
from bsvi.beyond import end_to_end, updates
from bsvi.refinement import Step
from tests.paper.test_dreg import check_same_mean
from tests.paper.test_end_to_end import check_iterative, check_sa_vae, check_total_derivative
from tests.paper.test_lost_gradients import (
    check_a_decoder_without_parameters,
    check_a_draw_of_weight_zero,
    check_family_gradient,
)
from tests.paper.test_objectives import check_a_weight_that_is_not_finite_counts_as_zero
from tests.paper.test_precision import check_no_more_than_ln_p
from tests.paper.test_t1_theorem_1_unbiased import check_unbiased, check_unbiased_end_to_end
from tests.paper.test_t3_weights_and_steps import check_weights_and_steps
from tests.paper.test_t5_ordering import check_ordering
from tests.paper.test_t7_gradients import (
    check_phi_gradient,
    check_theta_gradient,
)
from tests.paper.test_t7_gradients import (
    test_pi_gets_the_whole_bounds_gradient_with_and_without_resampling as check_pi_gradient,
)
from tests.paper.test_t8_resampling import check_gradient, check_index
from tests.paper.test_t15_counts import check_counts
from tests.paper.test_t16_batch_independence import check_batch_independence

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


# --- seen by T3 and T5: the steps are wrong, the bound is still one ----------------------------------------------------


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


# --- seen by T7: the gradients are wrong, all values are right ----------------------------------------------------------


@mutant(check_theta_gradient, AllDraws())
def missing_stop_gradient(mp):
    def walk(self, model, x, lambda_, beta=1.0, attach=0, budget=None):
        state = None
        lambda_ = lambda_.detach().requires_grad_()
        for i in range(self.steps + 1):
            q = model.posterior(lambda_)
            weighed = draws.weigh(model, x, q, self.samples, beta)
            g = torch.autograd.grad(weighed.log_w.sum(), lambda_, create_graph=True)[0]
            yield Step(lambda_, weighed, g.detach() if i == 0 else g, kept=True)
            lambda_, state = self.ascend(lambda_, self.clipped(g, q), state)

    mp.setattr(SVI, "walk", walk)


@mutant(check_theta_gradient, AllDraws())
def encoder_term_leaks_into_theta(mp):
    def call(original, self, model, x, beta=1.0, attach=None, budget=math.inf):
        refined = original(self, model, x, beta, attach, budget)
        log_w_0 = draws.weigh(model, x, model.posterior(model.encode(x))).log_w[0]
        return refined._replace(phi=log_w_0 - log_w_0.detach())

    wrapping(mp, SVI, "__call__", call)


@mutant(check_phi_gradient, "bsvi")
def gradient_of_the_bound_leaks_into_phi(mp):
    def call(original, self, model, x, beta=1.0, attach=None, budget=math.inf):
        refined = original(self, model, x, beta, attach, budget)
        first, log_w = Amortized(1)(model, x, beta).trajectory.log_w, refined.trajectory.log_w
        log_w = torch.cat([log_w[:1].detach() + first - first.detach(), log_w[1:]])
        return refined._replace(trajectory=replace(refined.trajectory, log_w=log_w))

    wrapping(mp, SVI, "__call__", call)


@mutant(check_phi_gradient, "bsvi-sir")
def phi_gets_the_clipped_gradient(mp):
    def walk(original, self, model, x, *args):
        for step in original(self, model, x, *args):
            last = step.gradient.numel() == 0
            yield step if last else step._replace(gradient=self.clipped(step.gradient, model.posterior(step.lambda_)))

    wrapping(mp, SVI, "walk", walk)


@mutant(check_phi_gradient, "bsvi")
def phi_gets_nothing(mp):
    wrapping(mp, SVI, "__call__", lambda original, *args: original(*args)._replace(phi=torch.zeros(11)))


@mutant(check_pi_gradient)
def pi_gets_nothing_when_resampling(mp):
    wrapping(
        mp,
        Objective,
        "log_pi",
        lambda original, self, t: original(self, t).detach() if self.theta.attach == 0 else original(self, t),
    )


# --- seen by T8: the resampling is wrong --------------------------------------------------------------------------------


@mutant(check_gradient)
def uniform_resampling(mp):
    wrapping(mp, theta, "resample", lambda original, z, r, draws: original(z, torch.ones_like(r), draws))


@mutant(check_gradient)
def resampling_without_pi(mp):
    wrapping(mp, theta, "derivative", lambda original, bound, log_w, log_pi: log_w.softmax(0))


@mutant(check_index)
def most_likely_index_instead_of_a_random_one(mp):
    mp.setattr(theta, "resample", lambda z, r, draws: z[r.argmax(0), torch.arange(z.shape[1])][None])


# --- seen by T15 and by the test of 1.6: draws that are missing ---------------------------------------------------------


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


# --- seen by the tests of what is lost in silence -------------------------------------------------------------------------


@mutant(check_a_decoder_without_parameters, "bsvi")
def rows_with_a_graph_are_found_by_count(mp):
    """Without parameters the last draw has no graph, and the others are put one place too late."""

    def trajectory_(original, self, model, x, beta):
        if 0 < len(self.attached) < self.proposals:
            rows = [self.rows[2][: self.samples], *self.attached.values()]
            self.attached = dict(enumerate(rows))
        return original(self, model, x, beta)

    wrapping(mp, trajectory.Buffer, "trajectory", trajectory_)
    mp.setattr(graphs, "find_reached_parameters", lambda model, *values: [*values])  # keep graphs to z


@mutant(check_no_more_than_ln_p)
def lambda_and_draws_as_autocast_leaves_them(mp):
    wrapping(mp, refinement, "encode", lambda original, model, x: model.encode(x))
    mp.setattr(draws, "REDUCED", ())


@mutant(check_family_gradient, "bsvi-sir")
def the_familys_own_parameters_are_forgotten(mp):
    mp.setattr(refinement, "find_reached_parameters", lambda model, *values: [])


@mutant(check_family_gradient, "bsvi")
def the_bound_leaks_into_the_familys_own_parameters(mp):
    def weigh_apart(self, drawn, steers, keep=False):
        return draws.weigh_draw(self.model, self.x, drawn, self.beta)

    def gradients(self, of, model, x, q, drawn, weighed, beta, keep):
        return torch.autograd.grad(weighed.log_w.sum(), of, retain_graph=True, allow_unused=True)

    mp.setattr(graphs.Graphs, "weigh_apart", weigh_apart)
    mp.setattr(SVI, "gradients", gradients)


@mutant(check_a_draw_of_weight_zero, "bsvi")
def kept_graphs_with_a_weight_of_zero(mp):
    mp.setattr(trajectory.Buffer, "differentiable", True)


@mutant(check_a_draw_of_weight_zero, "bsvi", True)
def recomputed_draws_of_weight_zero(mp):
    mp.setattr(theta, "with_weight", lambda x, z, r: (x, z, r))


@mutant(check_a_draw_of_weight_zero, "iwae")
def amortized_draws_of_weight_zero(mp):
    mp.setattr(amortized, "without_zero_weights", lambda model, x, lambda_, weighed, *_: weighed)


# --- beyond the paper -----------------------------------------------------------------------------------------------------


@mutant(check_same_mean)
def dreg_without_the_square(mp):
    mp.setattr(amortized, "square_weights", lambda drawn, log_w, beta: None)


@mutant(check_same_mean, 5, 0.4)
def dreg_that_ignores_beta(mp):
    wrapping(mp, amortized, "square_weights", lambda original, drawn, log_w, beta: original(drawn, log_w, 1.0))


@mutant(check_sa_vae)
def a_detached_step_end_to_end(mp):
    wrapping(mp, end_to_end, "gradient", lambda original, value, at, twice, retain: original(value, at, False, retain))


@mutant(check_total_derivative)
def clipping_that_is_not_differentiated(mp):
    def clipped(original, self, gradient, q):
        short = original(self, gradient, q)
        return gradient * (short / gradient).detach()

    wrapping(mp, updates.Rates, "clipped", clipped)


@mutant(check_total_derivative)
def rates_that_get_no_gradient(mp):
    def step(original, self, i, lambda_, gradient, state, q):
        velocity = original(self, i, lambda_, gradient, state, q)[1]
        return lambda_ + self.rates()[i].detach().to(lambda_) * velocity, velocity

    wrapping(mp, updates.Rates, "forward", step)


@mutant(check_unbiased_end_to_end)
def rates_that_leak_into_the_weights(mp):
    def take(original, self, i, model, *args):
        taken = original(self, i, model, *args)
        z = taken.weighed.z
        log_q = model.posterior(taken.lambda_).log_prob(z)  # of the lambda that the rate has moved
        log_w = taken.weighed.log_lik + model.log_prior(z.flatten(0, 1)).view_as(log_q) - log_q
        return taken._replace(weighed=taken.weighed._replace(log_w=log_w))

    wrapping(mp, end_to_end.EndToEnd, "take", take)


@mutant(check_iterative)
def a_forgotten_stop_in_iterative_inference(mp):
    made = end_to_end.EndToEnd.__init__
    mp.setattr(end_to_end.EndToEnd, "__init__", lambda self, svi, update, **_: made(self, svi, update))
    mp.setattr(updates.Network, "see", lambda self, gradient: gradient)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_is_caught(name, monkeypatch):
    plant, check, args = MUTANTS[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check(*args)


def test_there_are_enough_mutants_and_each_has_a_check_that_passes_without_it():
    assert len(MUTANTS) >= 15
    assert objective("svi").buffer_weight.__class__ is Last
