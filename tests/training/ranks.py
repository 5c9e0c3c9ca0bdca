"""Several connected processes on this machine for a test, forked from a server that has torch imported."""

import os
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from bsvi.training.distributed import Ranks
from tests.training.children import _context


def together(function, *arguments, size=2, seconds=120):
    """What ``function(team, *arguments)`` returns in each of ``size`` processes; it must be importable."""
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            _context.Process(target=_join, args=(rank, size, folder, function, arguments)) for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(seconds)
        alive = [process for process in processes if process.exitcode is None]
        for process in alive:
            process.kill()
            process.join()
        said = "".join(path.read_text() for path in Path(folder).glob("*.error"))
        assert not alive and not said, said or "still running"
        return [torch.load(Path(folder) / f"{rank}.result", weights_only=False) for rank in range(size)]


def _join(rank, size, folder, function, arguments):
    code = 0
    try:
        torch.set_num_threads(1)
        store = dist.FileStore(f"{folder}/store", size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=100))
        torch.manual_seed(0)
        result = function(Ranks(rank, size, rank, torch.device("cpu")), *arguments)
        torch.save(result, f"{folder}/{rank}.result")
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        Path(f"{folder}/{rank}.error").write_text(traceback.format_exc())
        code = 1
    finally:
        os._exit(code)
