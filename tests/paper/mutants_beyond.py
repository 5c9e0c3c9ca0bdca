"""Mutants of the methods beyond the paper."""

from bsvi import (
    amortized,
)
from bsvi.beyond import end_to_end, updates
from tests.paper.planting import mutant, wrapping
from tests.paper.test_dreg import check_same_mean
from tests.paper.test_end_to_end import check_iterative, check_sa_vae, check_total_derivative
from tests.paper.test_t1_theorem_1_unbiased import check_unbiased_end_to_end

# --- beyond the paper -------------------------------------------------------------------------------------------------


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
    def take(original, self, i, model, *args, **options):
        taken = original(self, i, model, *args, **options)
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
