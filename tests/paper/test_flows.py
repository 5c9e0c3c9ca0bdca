"""Normalising flows (zuko) as q and as prior: trained by every method, and judged by every estimator."""

import math

import pytest
import torch
import zuko
from torch import nn
from torch.distributions import Normal

import bsvi

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(4))


class Posterior(nn.Module):
    """q(z; lambda): a flow whose context is lambda."""

    def __init__(self):
        super().__init__()
        self.flow = zuko.flows.MAF(2, 4, transforms=1, hidden_features=(8,))

    def forward(self, lambda_):
        return self.flow(lambda_)


class Prior(nn.Module):
    def __init__(self):
        super().__init__()
        self.flow = zuko.flows.NSF(2, transforms=1, hidden_features=(8,))

    def forward(self):
        return self.flow()


class PriorOfX(nn.Module):
    def __init__(self):
        super().__init__()
        self.flow = zuko.flows.MAF(2, 1, transforms=1, hidden_features=(8,))

    def forward(self, x):
        return self.flow(x[:, :1])


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 3)

    def forward(self, x, z):
        return Normal(self.net(z), 0.7).log_prob(x).sum(-1)


def model(prior=Prior, family=Posterior):
    torch.manual_seed(0)
    return bsvi.VAE(nn.Linear(3, 4), Decoder(), family(), prior())


@pytest.mark.parametrize("method", bsvi.METHODS)
def test_every_method_trains_flows_as_q_and_as_prior(method):
    for prior in (Prior, PriorOfX):
        one = model(prior)
        torch.manual_seed(1)
        bsvi.objective(method, k=3)(one, X).loss.backward()
        for part in (one.encoder, one.decoder, one.family, one.prior):
            gradients = [p.grad for p in part.parameters() if p.grad is not None]
            assert gradients and sum(g.abs().sum() for g in gradients) > 0, (
                f"{method}: {type(part).__name__} learns nothing"
            )


@pytest.mark.slow
def test_a_flow_that_learns_under_bsvi_sir_has_a_better_elbo_than_one_that_is_frozen():
    """From the same start, with the decoder fixed: what the family's own parameters learn is a better q."""
    elbos = []
    for trained in (False, True):
        torch.manual_seed(0)
        one = bsvi.VAE(nn.Linear(3, 4), Decoder().requires_grad_(False), Posterior())
        one.family.requires_grad_(trained)
        objective = bsvi.objective("bsvi-sir", k=2)
        optimizer = torch.optim.Adam([p for p in one.parameters() if p.requires_grad], lr=0.02)
        torch.manual_seed(2)
        for _ in range(150):
            optimizer.zero_grad()
            objective(one, X).loss.backward()
            optimizer.step()
        elbos.append(bsvi.evaluate(one, X, k=1, iwae=200).amortized_elbo)
    assert (elbos[1] - elbos[0]).mean > 0.1


@pytest.mark.parametrize("prior", [Prior, PriorOfX])
def test_ais_from_a_flow_agrees_with_many_draws_of_it(prior):
    """ln p(x) by 20,000 draws of the prior; 6 standard errors of the differences and 0.05 for the chains' bias."""
    one = model(prior, lambda: lambda lambda_: bsvi.DiagonalGaussian(lambda_))
    with torch.no_grad():
        p = one.prior(X) if prior is PriorOfX else one.prior()
        z = p.sample((20_000,) if prior is PriorOfX else (20_000, 1)).expand(-1, len(X), -1)
        log_lik = Normal(one.decoder.net(z), 0.7).log_prob(X).sum(-1)
        plain = log_lik.logsumexp(0) - math.log(20_000)
    found = bsvi.ais(one, X, chains=16, temperatures=25, leapfrog=4).log_likelihood.per_example
    difference = torch.tensor(found) - plain
    assert abs(difference.mean()) < 0.05 + 6 * difference.std() / math.sqrt(len(X))
