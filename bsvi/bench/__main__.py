"""`python -m bsvi.bench decoder | sampling | sizes | memory`: prints a table and, with --json FILE, writes all of it."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bsvi.system.runtime import start
from bsvi.system.terminal import Parser


def print_progress(line: str) -> None:
    """Print a line of progress where it does not disturb the table."""
    print(line, file=sys.stderr, flush=True)


def print_table(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """Print rows under columns."""
    made = Table(*columns, title=title)
    for row in rows:
        made.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else 140).print(made)


def print_decoder_table(result: dict[str, Any]) -> None:
    """Print what `bsvi.bench.decoder.run` returned."""
    sgemm = result["sgemm_gflops"]
    state = "VOID: the machine was busy" if result["void"] else "valid"
    title = (
        f"{result['clock']} time, {result['threads']} threads, batch {result['settings']['batch']}; "
        f"sgemm {sorted(sgemm)[len(sgemm) // 2]:.0f} GFLOP/s (best {max(sgemm):.0f}): {state}"
    )
    columns = ("method", "variant", "seconds", "ratio", "range", "n", "faults", "GFLOP", "of sgemm", "port's at")
    rows = [
        (
            row["method"],
            row["variant"],
            float(row["seconds"]),
            f"{row['ratio']:.3f}",
            f"{row['ratio_range'][0]:.3f} to {row['ratio_range'][1]:.3f}",
            row["n"],
            int(row["page_faults"]),
            f"{row['flops'] / 1e9:.0f}",
            f"{row['of_sgemm']:.0%}",
            f"{row['port_arithmetic_of_sgemm']:.0%}",
        )
        for row in result["rows"]
    ]
    print_table(title, columns, rows)
    if "fallback" in result:
        print_decoder_table(result["fallback"])


def main(argv: list[str] | None = None) -> int:
    """Run one benchmark; a mistake in the options is one line and exit code 2."""
    parser = Parser(prog="bsvi bench", description=__doc__)
    parser.add_argument("what", choices=("decoder", "sampling", "sizes", "memory"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--clock", choices=("auto", "wall", "cpu"), default="auto")
    parser.add_argument("--variants", default="", help="comma-separated; see bsvi.bench.decoder.VARIANTS")
    parser.add_argument("--methods", default="", help="comma-separated: svi-10, bsvi-9-sir, vae")
    parser.add_argument("--compiled", action="store_true", help="sizes: also with compiled decoders, as a ratio")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    options = parser.parse_args(argv)
    for name in ("rounds", "batch"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    if options.json and (options.json.is_dir() or not options.json.absolute().parent.is_dir()):
        parser.error(f"--json {options.json}: name a file in a folder that exists")
    try:
        result = run_benchmark(options)
    except (ValueError, OSError) as error:
        print_progress(f"bsvi bench: {error}")
        return 2
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def run_benchmark(options: argparse.Namespace) -> Any:
    """Run what the options ask for, print its table, return its result."""
    from bsvi.bench import decoder, memory, sampling, sizes
    from bsvi.system.clock import ClockName
    from bsvi.system.runtime import Runtime

    clock: ClockName = "cpu" if options.clock == "cpu" else "wall"
    if clock == "cpu":
        options.threads = 1  # the CPU time of several threads includes their waiting for each other
    # the decoder benchmark sets the allocator itself, per variant
    start(Runtime(device="cpu", threads=options.threads, allocator=options.what != "decoder"))
    chosen: dict[str, Any] = {
        key: tuple(value.split(","))
        for key, value in (("variants", options.variants), ("methods", options.methods))
        if value
    }
    if options.what == "decoder":
        settings = decoder.DecoderBench(
            batch=options.batch, rounds=options.rounds, threads=options.threads, clock=options.clock, **chosen
        )
        result: Any = decoder.run(settings, print_progress)
        print_decoder_table(result)
    elif options.what == "sampling":
        result = sampling.run(clock=clock)
        print_table("ancestral sampling, paper's decoder", ("what", "value"), list(result.items()))
    elif options.what == "sizes":
        result = sizes.run(batch=options.batch, compiled=options.compiled, clock=clock)
        print_table("BSVI-9-SIR step", tuple(result[0]), [tuple(row.values()) for row in result])
    else:
        result = memory.run(batch=options.batch, **chosen)
        print_table("peak memory of a step", tuple(result[0]), [tuple(row.values()) for row in result])
    return result


if __name__ == "__main__":
    sys.exit(main())
