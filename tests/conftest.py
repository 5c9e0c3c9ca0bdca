import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    torch.set_num_threads(1)  # the tests run as two processes
    torch.manual_seed(0)
