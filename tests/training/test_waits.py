"""How often an update waits for the device: each number that Python reads is such a moment."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bsvi import VAE, objective, objectives, theta
from bsvi.nets import MLPDecoder, MLPEncoder
from bsvi.training.health import NotFinite
from bsvi.training.loop import Training, train
from tests.training.small import batches, make

READ = torch.ops.aten._local_scalar_dense.default
CHECKS = {"bsvi-sir": 1, "bsvi-sir-pi": 1, "vae": 2, "iwae": 2, "svi": 2, "bsvi": 2, "bsvi-ds": 2, "bsvi-pi": 2}


class CountReads(TorchDispatchMode):
    """Counts the numbers that leave a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.reads += func is READ
        return func(*args, **(kwargs or {}))


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way that tensors of a GPU go, with numbers of a CPU."""
    for module in (objectives, theta):
        monkeypatch.setattr(module, "is_at_hand", lambda tensor: False)


def count_reads(method: str, steps: int) -> int:
    model, objective = make(method)
    with CountReads() as mode:
        train(model, objective, batches(1), settings=Training(steps=steps, log_every=10**6))
    return mode.reads


@pytest.mark.parametrize("method", CHECKS)
def test_an_update_waits_for_the_device_once_and_once_more_where_graphs_are_kept(
    method: str, as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # AMSGrad's own count of steps is a number of the CPU wherever the weights are
    monkeypatch.setattr("bsvi.training.state.torch.optim.Adam.step", lambda optimizer: None)
    assert count_reads(method, 9) - count_reads(method, 4) == 5 * CHECKS[method]


def test_a_walk_of_known_slopes_that_is_trained_end_to_end_waits_twice(
    as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bsvi.training.state.torch.optim.Adam.step", lambda optimizer: None)
    model = VAE(MLPEncoder(2, (4, 4), 8), MLPDecoder(2, (4, 4), 8))
    images, reads = [torch.ones(5, 1, 4, 4)], []
    for steps in (4, 9):
        with CountReads() as mode:
            train(model, objective("bsvi-e2e", k=3, width=4), images, settings=Training(steps=steps, log_every=10**6))
        reads.append(mode.reads)
    assert reads[1] - reads[0] == 5 * 2


def test_training_says_where_the_data_are_bad_without_waiting_for_them(as_on_a_gpu: None) -> None:
    bad = batches(1)
    bad[0].x[4, 0] = torch.nan
    with pytest.raises(
        NotFinite, match=r"step 1: x holds NaN or infinity in 1 of 8 training examples, batch ids 4; clean"
    ):
        train(*make("bsvi-sir"), bad, settings=Training(steps=2))


def test_draws_without_weight_are_replaced_alike_with_and_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, z, r = torch.rand(5, 3), torch.randn(4, 5, 2), torch.rand(4, 5)
    r[1, 2], r[:, 3] = 0.0, 0.0
    asked = theta.with_weight(x, z, r)
    monkeypatch.setattr(theta, "is_at_hand", lambda tensor: False)
    for one, other in zip(asked, theta.with_weight(x, z, r), strict=True):
        assert torch.equal(one, other)
    whole = torch.rand(4, 5) + 0.1
    for one, other in zip((x, z, whole), theta.with_weight(x, z, whole), strict=True):
        assert torch.equal(one, other)
