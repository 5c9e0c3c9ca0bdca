"""On a trained model there is no exact value, but three judges that share little agree: BSVI-500, IWAE-5,000 and AIS.

``pytest -m slow -s tests/evaluation/test_digits.py`` prints the table of docs/evaluation.md.
"""

import numpy as np
import pytest
import torch

from bsvi import VAE, objective
from bsvi.data import evaluation_batches, load_digits, training_batches
from bsvi.evaluation.ais import ais
from bsvi.evaluation.evaluate import evaluate
from bsvi.evaluation.gap import amortization_gap
from bsvi.nets.mlp import MLPDecoder, MLPEncoder
from bsvi.nets.pixelcnn import PixelCNN


def trained(model, steps, method="bsvi-sir"):
    bound = objective(method, k=9)
    optimizer = torch.optim.Adam([*model.parameters(), *bound.parameters()], lr=1e-3, amsgrad=True)
    for batch in training_batches(load_digits().train, seed=0, batch_size=50, steps=steps):
        optimizer.zero_grad()
        bound(model, batch.x).loss.backward()
        optimizer.step()
    return model


def images(count, size):
    return evaluation_batches(load_digits().test.take(count), batch_size=size)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_judges_agree_on_a_trained_digits_model():
    model = trained(VAE(MLPEncoder(8, (8, 8), 64), MLPDecoder(8, (8, 8), 64)), 2000)
    scores = evaluate(model, images(100, 50), k=500, iwae=(500, 5000))
    annealed = ais(model, images(100, 50), chains=16, temperatures=500, leapfrog=10)
    judges = {"BSVI-500": scores.log_likelihood, "IWAE-5000": scores.iwae[5000], "AIS": annealed.log_likelihood}
    for name, score in judges.items():
        print(f"\n{name:10} {score}   minus AIS {score - annealed.log_likelihood}", end="")
    gap = amortization_gap(model, images(100, 50))
    print(f"\n{gap}\nworst: {gap.worst(5)}")
    for score in judges.values():  # lower bounds all three: none is far below the best of them
        difference = score - annealed.log_likelihood
        assert abs(difference.mean) < 6 * difference.stderr + 0.1
    assert scores.amortized_elbo.mean < scores.elbo.mean < scores.log_likelihood.mean
    assert abs((gap.log_likelihood - annealed.log_likelihood).mean) < 0.15


def check_batches(decoder, k, count):
    model = trained(VAE(MLPEncoder(8, (8, 8), 64), decoder), 2)
    whole = evaluate(model, images(count, count), k=k, iwae=(k,))
    for size in (1, 4):
        parts = evaluate(model, images(count, size), k=k, iwae=(k,), chunk=3)
        for name in ("log_likelihood", "elbo", "kl", "reconstruction", "amortized_elbo", f"iwae_{k}"):
            np.testing.assert_allclose(parts.columns[name], whole.columns[name], rtol=0, atol=1e-4, err_msg=name)
            print(name, abs(parts.columns[name] - whole.columns[name]).max())


def test_a_convolutional_decoder_gives_the_same_numbers_in_any_batch():
    check_batches(PixelCNN(8, (8, 8), channels=8, kernels=(5, 3)), k=10, count=5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_papers_decoder_gives_the_same_numbers_in_any_batch_at_k_500():
    check_batches(PixelCNN(8, (8, 8)), k=500, count=6)
