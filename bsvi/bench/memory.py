"""Peak memory of one step, each case in a fresh process: a process never gives back what it has once used."""

import json
import subprocess
import sys
from typing import Any

CODE = """
import json, resource, sys, torch
from bsvi.bench.decoder import DecoderBench, build
from bsvi.bench.port import PlainPixelCNN
from bsvi.bench.steps import STEPS
from bsvi.nets import ResNetEncoder
from bsvi.system.runtime import keep_freed_memory
method, variant, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
s = DecoderBench(batch=batch)
weights = PlainPixelCNN(s.latent, s.image, s.channels, s.kernels).state_dict()
one = build(variant, s, weights, print)
if one.allocator: keep_freed_memory()
x = (torch.rand(batch, 1, *s.image) < 0.3).float()
encoder = ResNetEncoder(s.latent, s.image, s.encoder)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
STEPS[method](encoder, one.decoder, x, one.freeze)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"before_mb": before / 1024, "peak_mb": after / 1024}))
"""


def run(
    methods: tuple[str, ...] = ("vae", "bsvi-9-sir"),
    variants: tuple[str, ...] = ("port", "port+allocator", "eager"),
    batch: int = 50,
) -> list[dict[str, Any]]:
    """Return the peak resident memory of one step per method and variant, in MB; `before_mb` is torch itself."""
    from bsvi.bench.decoder import DecoderBench

    DecoderBench(batch=batch, variants=variants, methods=methods)  # refuses what it does not know, in one line
    rows = []
    for method in methods:
        for variant in variants:
            command = [sys.executable, "-c", CODE, method, variant, str(batch)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise OSError(f"the memory case {method} {variant} failed: {done.stderr.strip().splitlines()[-1]}")
            rows.append({"method": method, "variant": variant, **json.loads(done.stdout.splitlines()[-1])})
    return rows
