"""``bsvi plan EXPERIMENT --methods all --seeds 0:4 --device A100``: operations, memory and hours of a table, before it is run."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsvi.commands.sweep_flags import INSTEAD
from bsvi.commands.sweep_plan import learner, parse_seeds
from bsvi.commands.train_flags import parse as parse_train
from bsvi.commands.train_flags import strip_command
from bsvi.experiments.config import EXPERIMENTS, LONGEST
from bsvi.planning.devices import DEVICES, find_device
from bsvi.system.clock import CLOCKS, format_duration
from bsvi.system.terminal import Parser
from bsvi.tables.methods import METHODS_HELP, choose_methods
from bsvi.tables.words import suggest

if TYPE_CHECKING:
    from bsvi.commands.train_flags import Command
    from bsvi.planning.plan import Plan

MEASURED = ("cpu", "cuda")


def main(words: list[str]) -> int:
    arguments, rest = make_parser().parse_known_args(words)
    commands = parse_learners(arguments, rest)
    plan = build_plan(arguments, commands)
    if arguments.json:
        arguments.json.write_text(json.dumps(plan.as_dict(), indent=1) + "\n")
    for line in describe_plan(plan, next(iter(commands.values()))):
        print(line)
    return 0


def make_parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="bsvi plan",
        description=__doc__,
        epilog="Further flags are those of bsvi train: --steps 2000 --svi.steps 5 --batch-size 100",
        allow_abbrev=False,  # --seed is a flag of train
    )
    made.add_argument("experiment", metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    made.add_argument("--methods", default="all", help=f"{METHODS_HELP}; vae:8000+bsvi-sir:2000 for phases")
    made.add_argument("--seeds", default="0", help="which, as in bsvi sweep: 0, or 0,3, or 0:4 for 0 1 2 3 (default 0)")
    made.add_argument("--device", help=f"cpu or cuda: measured here (default cpu); or one of {', '.join(DEVICES)}")
    made.add_argument("--devices", type=int, default=1, help="how many, each with one run at a time (default 1)")
    made.add_argument("--efficiency", type=float, help="assumed share of the device's peak FLOP rate (default 0.4)")
    made.add_argument("--flops", type=float, help="the FLOP rate that is reached, in place of all assumptions: 5e12")
    made.add_argument(
        "--measure", type=float, default=20.0, help="seconds of measuring after the warm-up, for cpu and cuda"
    )
    made.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: CPU time on one thread, where others use the machine",
    )
    made.add_argument("--k", type=int, default=500, help="of the evaluation (default 500)")
    made.add_argument("--examples", type=int, help="evaluate the first N test images only")
    made.add_argument("--iwae", type=int, nargs="*", help="numbers of IWAE draws (default k to 5k)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    return made


def parse_learners(arguments: argparse.Namespace, rest: list[str]) -> dict[str, "Command"]:
    """The command of each method's run; a wrong word is one line with the nearest right one."""
    if arguments.experiment not in EXPERIMENTS and not Path(arguments.experiment).exists():
        hint = suggest(arguments.experiment, EXPERIMENTS)
        raise ValueError(f"unknown experiment {arguments.experiment!r}; {hint}There are {', '.join(EXPERIMENTS)}")
    if "--phases" in {word.split("=", 1)[0] for word in rest}:
        raise ValueError(f"--phases is for one run; {INSTEAD['--phases']}")
    names = choose_methods(arguments.methods, phases=True)
    for flag, least in (("devices", 1), ("k", 1), ("examples", 1), ("measure", 0)):
        value = getattr(arguments, flag)
        if value is not None and not least <= value <= LONGEST:
            raise ValueError(f"--{flag} must be from {least} to {LONGEST:,}, got {value}")
    if wrong := [n for n in arguments.iwae or () if not 1 <= n <= LONGEST]:
        raise ValueError(f"--iwae must be from 1 to {LONGEST:,}, got {wrong[0]}")
    if arguments.json and (arguments.json.is_dir() or not arguments.json.absolute().parent.is_dir()):
        raise ValueError(f"--json {arguments.json}: name a file in a folder that exists")
    return {name: parse_train([arguments.experiment, *rest, *learner(name)], "plan") for name in names}


def build_plan(arguments: argparse.Namespace, commands: dict[str, "Command"]) -> "Plan":
    """Count every method, then price or measure it."""
    name = (arguments.device or ("cpu" if arguments.flops is None else "")).lower()
    here = name in MEASURED and arguments.flops is None
    if arguments.efficiency is not None and (here or arguments.flops is not None):
        raise ValueError("--efficiency is for devices known by their peak rate; what is measured or given has none")
    device = None if here else find_device(name, arguments.efficiency, arguments.flops)
    seeds = len(parse_seeds(arguments.seeds))
    if arguments.seeds.isdigit() and int(arguments.seeds) > 0:
        print(
            f"--seeds {arguments.seeds} is one seed; 0:{arguments.seeds} are {arguments.seeds} of them", file=sys.stderr
        )
    first = next(iter(commands.values()))
    started: Any = start_timing(name, first, arguments.clock) if here else None  # a missing GPU is told at once

    from bsvi.experiments.batching import choose_batch_size, count_evaluate_passes
    from bsvi.planning.counting import count_steps, price_pace
    from bsvi.planning.pace import measure_pace
    from bsvi.planning.plan import PlannedEvaluation, describe_images, make_plan

    experiments = {name: strip_command(command) for name, command in commands.items()}
    methods = {phase.method: phase for e in experiments.values() for phase, _ in e.list_phases()}
    e = next(iter(methods.values()))
    images = describe_images(e, first.data_dir)
    draws = max(arguments.iwae or (), default=0) if arguments.iwae is not None else 5 * arguments.k
    tested = images.test if arguments.examples is None else min(images.test, arguments.examples)
    evaluation = PlannedEvaluation(arguments.k, draws, tested)
    print_progress(f"counting {len(methods)} methods of {arguments.experiment}")
    counts = count_steps(methods, images, on_cpu=name == "cpu")
    if device is not None:
        pace, where, basis = price_pace(e, images, device, counts), str(device), "counted"
    else:
        clock = CLOCKS[arguments.clock]
        passes = count_evaluate_passes(arguments.k, draws, e.svi.samples)
        rows = choose_batch_size(e.net, images.shape[1:], passes, started.threads, name)
        pace = measure_pace(e, images, methods, started, arguments.measure, clock, say=print_progress, rows=rows)
        basis = "measured"
        where = f"{name} of this machine, {started.threads} threads, compile {started.compile}, {arguments.clock} time"
    seconds = {method: pace.of(one, images, evaluation) for method, one in methods.items()}
    return make_plan(experiments, where, counts, seconds, evaluation, seeds, devices=arguments.devices, basis=basis)


def start_timing(name: Any, command: "Command", clock: str) -> Any:
    from bsvi.system import runtime

    if clock == "cpu" and (name != "cpu" or command.threads > 1):
        raise ValueError("--clock cpu measures one thread of the CPU: leave --device cuda and --threads out")
    return runtime.start(runtime.Runtime(name, 1 if clock == "cpu" else command.threads, command.compile))


def print_progress(line: str) -> None:
    """A line of progress, where it does not disturb the plan."""
    print(line, file=sys.stderr, flush=True)


def describe_plan(plan: "Plan", command: "Command") -> list[str]:
    """The plan as lines of text."""
    runs = len(plan.rows) * plan.seeds
    width = max(12, *(len(row.method) for row in plan.rows))
    lines = [
        f"{plan.experiment}: {len(plan.rows)} methods x {plan.seeds} seeds = {runs} runs of {plan.steps:,} steps, "
        f"batch {plan.batch_size}, k = {plan.k}",
        f"device: {plan.device}",
        "",
        f"{'method':{width}} {'decoder':>8} {'decoder':>11} {'memory':>9} {'seconds':>9} {'time':>9} {'time,':>9}",
        f"{'':{width}} {'calls':>8} {'GFLOP/step':>11} {'MB':>9} {'per step':>9} {'per run':>9} {f'{plan.seeds} seeds':>9}",
    ]
    for row in plan.rows:
        one, all_seeds = (format_duration(3600 * runs * row.train_hours) for runs in (1, plan.seeds))
        lines.append(
            f"{row.method:{width}} {row.decoder_calls:8} {row.decoder_flops / 1e9:11,.4g} {row.memory / 1e6:9,.0f} "
            f"{row.step_seconds:9.3g} {one:>9} {all_seeds:>9}"
        )
    e = plan.evaluation
    judged = f"BSVI-{e.k}" + (f" and IWAE-{e.iwae}" if e.iwae else "")
    lines += [
        "",
        f"training, validation included: {format_total(plan.train_hours)}",
        f"evaluation, {judged} of {e.images:,} test images: {format_total(plan.evaluate_hours)}, "
        f"{format_duration(3600 * plan.rows[0].evaluate_hours)} per run",
        f"together: {format_total(plan.train_hours + plan.evaluate_hours)} on one device"
        + (
            f", {format_total(plan.hours_on_devices)} on {plan.devices} (a run is not split)"
            if plan.devices > 1
            else ""
        ),
        "",
        *list_notes(plan, command),
    ]
    return lines


def list_notes(plan: "Plan", command: "Command") -> list[str]:
    """How the numbers came about, and what they leave out."""
    lines = []
    if command.patience:
        lines.append(
            f"An upper figure: a run also ends after {command.patience} looks without a better bound (--patience)."
        )
    lines.append(
        "Operations are counted, not guessed: matrix products and convolutions of one step of the real objective."
    )
    lines.append(
        "Memory: weights, gradients, AMSGrad's moments, best weights, and the most that is alive within a step, counted on "
        "tensors without contents; on top come the libraries themselves (a CUDA context takes about 500 MB), their "
        "workspaces and the allocator's waste."
    )
    if plan.basis == "measured":
        lines.append(
            "Seconds: steps of the real training loop on made-up images, measured now; methods that were not run follow from "
            "the decoder passes by which they differ. Starting and compiling are not included."
        )
    elif "as given" not in plan.device:
        lines.append(
            "Seconds: each operation by its FLOPs, its bytes or the least time of a launch, whichever is longest, nothing "
            "fused. Products run in float32, convolutions in TF32 where there is one (torch's defaults). Not measured: "
            "change the assumption with --efficiency, or give a rate with --flops."
        )
    known = next((d for d in DEVICES.values() if plan.device.startswith(f"{d.name} (")), None)
    most = max(plan.rows, key=lambda row: row.memory)
    if known is not None and most.memory > known.memory:
        lines.append(
            f"warning: {most.method} needs {most.memory / 1e9:.1f} GB, more than the {known.memory / 1e9:g} GB of one "
            f"{known.name}; use --recompute or a smaller --batch-size"
        )
    return lines


def format_total(hours: float) -> str:
    """A duration in words, with days where there are many.

    >>> format_total(2.5), format_total(100.0)
    ('2.5 h', '100 h (4.17 days)')
    """
    return format_duration(3600 * hours) + (f" ({hours / 24:,.3g} days)" if hours >= 48 else "")
