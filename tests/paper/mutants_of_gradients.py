"""Mutants whose values are right and whose gradients are wrong, or that lose something in silence."""

import math
from dataclasses import replace

import torch

from bsvi import (
    SVI,
    AllDraws,
    Amortized,
    Objective,
    amortized,
    draws,
    graphs,
    refinement,
    theta,
    trajectory,
)
from bsvi.refinement import Step
from tests.paper.planting import mutant, wrapping
from tests.paper.test_lost_gradients import (
    check_a_decoder_without_parameters,
    check_a_draw_of_weight_zero,
    check_family_gradient,
)
from tests.paper.test_precision import check_no_more_than_ln_p
from tests.paper.test_t7_gradients import (
    check_phi_gradient,
    check_theta_gradient,
)
from tests.paper.test_t7_gradients import (
    test_pi_gets_the_whole_bounds_gradient_with_and_without_resampling as check_pi_gradient,
)
from tests.paper.test_t8_resampling import check_gradient, check_index

# --- seen by T7: the gradients are wrong, all values are right --------------------------------------------------------


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


# --- seen by T8: the resampling is wrong ------------------------------------------------------------------------------


@mutant(check_gradient)
def uniform_resampling(mp):
    wrapping(mp, theta, "resample", lambda original, z, r, draws: original(z, torch.ones_like(r), draws))


@mutant(check_gradient)
def resampling_without_pi(mp):
    wrapping(mp, theta, "derivative", lambda original, bound, log_w, log_pi: log_w.softmax(0))


@mutant(check_index)
def most_likely_index_instead_of_a_random_one(mp):
    mp.setattr(theta, "resample", lambda z, r, draws: z[r.argmax(0), torch.arange(z.shape[1])][None])


# --- seen by the tests of what is lost in silence ---------------------------------------------------------------------


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
