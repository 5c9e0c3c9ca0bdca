"""What goes wrong in a child: functions that are called in it before ``bsvi train`` begins."""

import json
import mmap
import os
import resource
import signal
from pathlib import Path

import torch

from bsvi.data.batches import Batch

STAGES = ("start-up", "training", "saving", "validating", "after the end")


class CountedCalls:
    """The ``os`` module of the files that save, with the calls that reach the disk counted; one of them is the last."""

    COUNTED = ("open", "write", "fsync", "replace", "close", "truncate")

    def __init__(self, last=-1, moment="before", report=None):
        self.last, self.moment, self.report, self.calls = last, moment, report, 0

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in self.COUNTED:
            return real

        def counted(*words, **options):
            self.calls += 1
            if self.report is not None:
                Path(self.report).write_text(str(self.calls))
            if self.calls == self.last:
                if self.moment == "within" and name == "write":
                    real(words[0], words[1][: len(words[1]) // 2])
                elif self.moment == "after":
                    real(*words, **options)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*words, **options)

        return counted


def kill_in_save(last, moment="before", report=None):
    """SIGKILL at the last-th call that reaches the disk."""
    import bsvi.runs.folder
    import bsvi.runs.metrics
    import bsvi.system.files

    calls = CountedCalls(last, moment, report)
    bsvi.system.files.os = calls
    bsvi.runs.folder.os = calls
    bsvi.runs.metrics.os = calls


def mark_stages(path):
    """Keep in a byte of a file what the process is doing, for whoever kills it."""
    import bsvi.commands.train
    import bsvi.training.loop
    from bsvi.runs.folder import Run

    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 1)

    def mark(stage):
        memory[0] = STAGES.index(stage)

    def wrap(function, stage):
        def marked(*words, **options):
            mark(stage)
            try:
                return function(*words, **options)
            finally:
                mark("training")

        return marked

    Run.save = wrap(Run.save, "saving")
    Run.save_model = wrap(Run.save_model, "saving")
    bsvi.training.loop.validate = wrap(bsvi.training.loop.validate, "validating")
    annealed = bsvi.training.loop.anneal_beta
    bsvi.training.loop.anneal_beta = lambda *words: (mark("training"), annealed(*words))[1]
    report = bsvi.commands.train.print_result
    bsvi.commands.train.print_result = lambda *words: (mark("after the end"), report(*words))[1]


def read_stage(path):
    return STAGES[Path(path).read_bytes()[0]]


def full_disk(first, last, limit):
    """From the first-th save until the last-th no file may grow beyond ``limit`` bytes; prints what was found meanwhile."""
    from bsvi.runs.checkpoint import unpack
    from bsvi.runs.folder import Run

    real, count, seen = Run.save, [0], {"failed": 0, "intact": 0, "temporaries": 0}
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def save(self, step, tensors, scalars):
        count[0] += 1
        soft = limit if first <= count[0] < last else hard
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        done = real(self, step, tensors, scalars)
        if not done:
            seen["failed"] += 1
            seen["temporaries"] += len(list(self.folder.glob(".*.tmp")))
            newest = self.checkpoints()
            seen["intact"] += bool(newest) and unpack(newest[0].read_bytes())[1]["step"] < step
        if count[0] == last:
            print(json.dumps(seen), flush=True)
        return done

    Run.save = save


def slow_steps(seconds, echo=1.0):
    """Every step takes this long, so that a signal meets one; a second one counts after ``echo`` seconds."""
    import time

    import bsvi.system.signals
    import bsvi.training.loop

    bsvi.system.signals.ECHO = echo

    annealed = bsvi.training.loop.anneal_beta
    bsvi.training.loop.anneal_beta = lambda *words: (time.sleep(seconds), annealed(*words))[1]


def stop_in_first_step():
    """SIGKILL as soon as the first step begins."""
    import bsvi.training.loop

    bsvi.training.loop.anneal_beta = lambda *words: os.kill(os.getpid(), signal.SIGKILL)


def not_finite(site, value, step):
    """NaN or infinity in the data, the decoder's output, a gradient or pi, at one step."""
    import bsvi.experiments.build
    import bsvi.training.loop
    from bsvi.nets.decoder import Decoder

    now = [0]
    annealed = bsvi.training.loop.anneal_beta

    def counting(settings, at):
        now[0] = at + 1
        return annealed(settings, at)

    bsvi.training.loop.anneal_beta = counting
    build = bsvi.experiments.build.build

    def spoil(gradient):
        return gradient * value if now[0] == step else gradient

    def built(*words, **options):
        found = build(*words, **options)
        if site == "gradient":
            next(found.model.decoder.parameters()).register_hook(spoil)
        if site == "pi":
            found.objective.buffer_weight.logits.register_hook(spoil)
        return found

    bsvi.experiments.build.build = built
    if site == "data":
        batches = bsvi.experiments.build.training_batches

        def spoilt(*words, start_step=0, **options):
            for at, (x, ids) in enumerate(batches(*words, start_step=start_step, **options), start_step + 1):
                if at == step:
                    x[4, 0, 2, 3] = value
                yield Batch(x, ids)

        bsvi.experiments.build.training_batches = spoilt
    if site == "decoder":
        forward = Decoder.forward

        def decode(self, x, z):
            log_lik = forward(self, x, z)
            if now[0] == step and torch.is_grad_enabled():
                log_lik = torch.where(torch.arange(len(log_lik)) == 4, value, log_lik)
            return log_lik

        Decoder.forward = decode


def limit_memory(bytes_):
    """The process may not have more address space than it has now and so much on top."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + bytes_, used + bytes_))


def start_together(at):
    """Wait for a moment that several processes agreed on."""
    import time

    time.sleep(max(0.0, at - time.time()))
