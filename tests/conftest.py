import os

# Some virtual machines announce AMX and kill the process that uses it, as bfloat16 products would.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    torch.set_num_threads(1)  # the tests run as two processes
    torch.manual_seed(0)
