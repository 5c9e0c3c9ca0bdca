"""``bsvi train EXPERIMENT``: train one method with one seed, in a run folder that survives anything."""

import contextlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bsvi.commands.about import check_stored_about
from bsvi.commands.compilation import note_seconds
from bsvi.commands.together import (
    SIGNAL_CODES,
    StoppedAtStart,
    join_team,
    shield_message,
    silence_others,
    speak_once,
    stop_at_once,
)
from bsvi.commands.train_flags import Command, parse, strip_command
from bsvi.commands.train_start import begin, check_words, default_folder
from bsvi.experiments.config import Experiment
from bsvi.runs.folder import Run, RunError
from bsvi.system import runtime
from bsvi.system.clock import format_duration
from bsvi.training.team import Rank, Team, end_process, find_rank


def main(words: list[str]) -> int:
    place = find_rank()
    return end_process(place, train_at(place, words))


def train_at(place: Rank | None, words: list[str]) -> int:
    """Train alone, or as one of several processes; returns the exit code."""
    try:
        with stop_at_once(place), speak_once(place):
            with silence_others(place):
                command = parse(words)
            experiment = strip_command(command)
            check_shares(experiment, place)
            with join_team(place, command.device) as team, contextlib.ExitStack() as held:
                run = Run(command.fork or command.out or default_folder(experiment))
                if team.run_on_first(lambda: print_if_finished(run, experiment)):
                    return 0
                team.run_on_first(lambda: check_words(command, run))
                taken: list[Run] = []

                def take() -> None:
                    if not taken:
                        taken.append(held.enter_context(run))

                if team.run_on_first(lambda: os.path.lexists(run.folder / "lock")):
                    # before torch is imported, where one process trains alone: a second one is refused at once
                    team.run_on_first(take)
                return train_in(run, command, experiment, team, take)
    except StoppedAtStart as stopped:
        if place is None or place.rank == 0:
            print(f"stopped by {stopped} before the first step; run the same command again to go on")
        return SIGNAL_CODES[str(stopped)]


def check_shares(experiment: Experiment, place: Rank | None) -> None:
    """RunError unless every process gets an equal share of each batch, and no example depends on another's."""
    if place is None:
        return
    if experiment.batch_size % place.size:
        raise RunError(
            f"batch_size {experiment.batch_size} does not divide among {place.size} processes; start a number that divides "
            "it, or change --batch-size"
        )
    if experiment.svi.clip == "batch":
        raise RunError("svi.clip batch couples the examples of a batch; use --svi.clip example, or one process")


def print_if_finished(run: Run, experiment: Experiment) -> bool:
    """Whether the run has its result, which is printed; needs no lock, and works in a folder one cannot write to."""
    if check_stored_about(run, experiment) is None:
        return False
    result = run.read_result()
    if result is not None:
        print_result(run, result, "finished before")
    return result is not None


def train_in(run: Run, command: Command, experiment: Experiment, team: Team, take: Callable[[], None]) -> int:
    """Train in a run folder that this process, or the first of its team, owns or will ``take``; returns the exit code."""
    team.run_on_first(lambda: check_stored_about(run, experiment))

    import torch

    from bsvi.experiments import build as experiments
    from bsvi.training.loop import NotFinite, train
    from bsvi.training.watch import Screen

    started = runtime.start(runtime.Runtime(command.device, command.threads, command.compile))
    quiet = command.quiet or not team.first
    torch.manual_seed(experiment.seed)  # of weights and noise
    built = team.load_in_turn(
        lambda: experiments.build(experiment, started.device, command.data_dir, progress=not quiet)
    )
    built = replace(built, rank=team.rank, size=team.size)
    about = team.run_on_first(lambda: begin(run, command, experiment, built, started, take))
    title = f"{experiment.experiment} {experiment.phases or experiment.method} seed {experiment.seed}"
    settings = built.training(time_limit=command.time_limit, save_every=command.save_every)
    words = (built.batches, built.valid, settings)
    mode: Any = "on" if about["compile"] else "off"
    if not team.first:
        runtime.compile_decoder(built.model.decoder, mode)
        with shield_message(team):
            return choose_exit_code(train(built.model, built.learns_from, *words, config=about, team=team))
    loggers = make_loggers(command, run, about)
    with Screen(title, experiment.steps, loggers, command.quiet, experiment.seconds) as screen:
        for line in started.notes:
            screen.say(line)
        runtime.compile_decoder(built.model.decoder, mode, screen.say)
        try:
            with shield_message(team):
                result = train(built.model, built.learns_from, *words, run, watcher=screen, config=about, team=team)
        except (NotFinite, RuntimeError) as error:
            run.note(f"error: {error}")
            raise
        if compiling := runtime.CompiledByShape.seconds:
            note_seconds(built, compiling)
            line = f"compiling took {format_duration(compiling)}; its code is kept for other runs"
            run.note(line)
            screen.say(line)
    if result.finished:
        print_result(run, vars(result), f"finished ({result.stopped})")
    else:
        say_last(
            run, f"saved at step {result.steps} ({result.stopped}); run the same command again to go on: {run.folder}"
        )
    return choose_exit_code(result)


def choose_exit_code(result: Any) -> int:
    return 0 if result.finished else SIGNAL_CODES.get(result.stopped, 0)


def print_result(run: Run, result: dict[str, Any], how: str) -> None:
    bound = result["best_valid_bound"]
    best = f"best validation bound {bound:.3f} at step {result['best_step']}" if bound is not None else "no validation"
    say_last(run, f"{how}: {run.folder}: {result['steps']} steps, {best}")


def say_last(run: Run, line: str) -> None:
    """The last line of a run, on the screen and in log.txt."""
    with contextlib.suppress(OSError):  # whoever read it may have gone
        print(line, flush=True)
    run.note(line)


def make_loggers(command: Command, run: Run, about: dict[str, Any]) -> list[Any]:
    """TensorBoard where it is installed, wandb where it is asked for."""
    from bsvi.experiments.build import reconstruct
    from bsvi.training.watch import TensorBoard, Wandb

    if command.logger == "wandb":
        return [Wandb(run.folder, about)]
    if command.logger == "tensorboard" and importlib.util.find_spec("tensorboard") is not None:
        return [TensorBoard(run.folder, reconstruct)]
    return []
