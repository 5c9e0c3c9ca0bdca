"""The training loop, from top to bottom: validate, anneal, estimate, backward, clip, step, log, save, stop."""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bsvi.examples import Pick, unpack
from bsvi.objectives import BadInput, Objective
from bsvi.runs.folder import Run, RunError
from bsvi.system.clock import Stopwatch, choose_clock
from bsvi.system.signals import Signals
from bsvi.training.arguments import check_arguments
from bsvi.training.health import ALONE, NotFinite, average_batch, check_batch, find_problem, step_sizes
from bsvi.training.journal import Journal, Watcher
from bsvi.training.phases import Phase, check_phases, name_of, phase_of
from bsvi.training.state import Best, State, TrainingState, size_limit
from bsvi.training.streams import BatchStream, start_at, take_next
from bsvi.training.team import Team
from bsvi.training.validation import VALIDATION_SEED as VALIDATION_SEED
from bsvi.training.validation import validate


@dataclass(frozen=True)
class Training:
    """How long and how; the defaults are the paper's where it says."""

    steps: int = 200_000  # updates at most
    lr: float = 1e-3  # AMSGrad
    max_grad_norm: float = 5.0  # of phi's and theta's gradient together
    beta_start: float = 1.0  # KL annealing: beta of the first step
    beta_steps: int = 0  # and the steps until it is 1
    valid_every: int = 1000  # steps between looks at the validation images
    patience: int = 20  # looks without a better bound before stopping; 0: never
    log_every: int = 100  # steps between lines of metrics
    save_every: float = 120.0  # seconds between checkpoints
    seconds: float = math.inf  # of updates at most: CPU time, on a GPU wall clock; validation and saving do not count
    time_limit: float = math.inf  # seconds until the run is saved and left, to be taken up again


@dataclass(frozen=True)
class Result:
    """Where training ended: for good ("steps", "seconds", "early"), or so that it can go on ("time", a signal's name)."""

    steps: int
    best_step: int
    best_valid_bound: float
    seconds: float
    stopped: str
    decoder_calls: int

    @property
    def finished(self) -> bool:
        return self.stopped in ("steps", "seconds", "early")


def train(
    model: Any,
    objective: Objective | list[Phase],
    batches: BatchStream,
    valid: BatchStream | None = None,
    settings: Training = Training(),  # noqa: B008 - frozen
    run: Run | Path | str | None = None,
    *,
    watcher: Watcher = Watcher(),  # noqa: B008 - without state
    config: dict[str, Any] | None = None,
    team: Team = ALONE,
    batch: Pick | None = None,
    ids: Pick | None = None,
) -> Result:
    """Train ``model`` (a module that is a Model) in place; leave it with its best weights, and the objective with their pi.

    Args:
        objective: what is learnt from; or a list of ``Phase``, which take turns. Early stopping and best weights
            are of the last one
        batches: of training: an iterable that is cycled, or a function of the step at which to start. Each batch is
            x: a tensor, or a nesting of dicts, tuples and lists of tensors; or an object with ``.x`` and ``.ids``.
            Resuming is exact if step s always sees the same batch: a list, or a function of the step; a loader that
            shuffles is not
        valid: of validation, the same every time; without it the last weights count as the best
        run: a run folder: metrics, checkpoints, and resuming from them
        config: what model.safetensors says of itself
        batch: what of a batch is x, where it is more: ``batch=lambda b: b[0]`` for a loader of (x, y)
        ids: what of a batch are the ids that messages name
        team: the processes that do this together (``join_processes`` of distributed), each with its equal share of
            every training batch, the whole of ``valid``, and the same model; the first one alone writes, prints and
            reads checkpoints

    Returns:
        A ``Result``: steps, the best validation bound and its step, seconds, and why training stopped.

    Example:
        >>> import bsvi, torch
        >>> class Decoder(torch.nn.Bilinear):
        ...     def forward(self, x, z):
        ...         return -super().forward(x, z).square().sum(-1)
        >>> model = bsvi.VAE(torch.nn.Linear(3, 4), Decoder(3, 2, 1))
        >>> train(model, bsvi.objective("bsvi", k=2), [torch.ones(5, 3)], settings=Training(steps=4)).stopped
        'steps'
    """
    if isinstance(run, str | Path):
        own: dict[str, Any] = {"watcher": watcher, "config": config, "team": team, "batch": batch, "ids": ids}
        with Run(run) if team.first else nullcontext() as opened:
            return train(model, objective, batches, valid, settings, opened, **own)
    phases = objective if isinstance(objective, list) else [Phase("", objective, settings.steps)]
    if isinstance(objective, list):
        check_phases(phases, settings.steps)
    check_arguments(model, phases, batches, valid)
    journal = Journal(run, watcher)
    saved = team.run_on_first(
        lambda: run.load(size_limit(model, phases[-1].objective)) if isinstance(run, Run) else None
    )
    stream = start_at(batches, saved[1]["step"] if saved else 0)  # first, as loaders draw from the random state
    phase = phase_of(phases, saved[1]["step"] if saved else 0)
    state = TrainingState(model, phase.objective, settings.lr)
    if saved is not None:
        state.restore(saved)
        older = "; pi of the best step is not in this older checkpoint" if state.best.lacks_pi(phase.objective) else ""
        journal.say(f"resumed at step {state.step}{older}")
    watcher.start(state.step)
    if not model.training:
        model.train()  # else as it is: the user may have put a part of it into eval mode
    bound_of = team.make_bound(model, phase.objective)
    state.watch, since_save = Stopwatch(state.watch.before), Stopwatch()
    unsaved, stopped, clock = False, "", choose_clock(state.device)
    used_up = state.spent >= settings.seconds

    with team.guard(), Signals() as signals:
        while not stopped:
            journal.say()
            over = used_up or state.step >= phase.last
            due = over or state.step % settings.valid_every == 0
            if valid is not None and due and state.looks.latest < state.step:
                found = validate(model, phase.objective, valid, state.step, signals, team, batch=batch, ids=ids)
                if found is None:  # a signal: it is looked at when the run is taken up again
                    stopped = team.agree_to_stop(signals.received)
                    break
                bound, first = found
                improved, unsaved = state.note_bound(bound), True
                if improved and run is not None:
                    run.save_model(state.best.to_model_file(phase is phases[-1]), config or {}, state.step)
                line = state.line("valid", bound=bound, best=improved) | name_of(phase, phases)
                journal.valid(line, model, first)

            if used_up or (phase is phases[-1] and (over or state.looks.is_exhausted(settings.patience))):
                stopped = "seconds" if used_up else "steps" if over else "early"
                break
            if over:
                phase = phase_of(phases, state.step + 1)
                state.hand_over(phase.objective)
                bound_of = team.make_bound(model, phase.objective)

            began = clock()
            x, names = unpack(take_next(stream, state.step), batch, ids)
            beta = anneal_beta(settings, state.step)
            try:
                estimate = bound_of(x, beta)
            except BadInput:
                check_batch(state.step + 1, x, names, model)  # says which ids
                raise
            state.optimizer.zero_grad(set_to_none=True)
            estimate.loss.backward()
            clipped = [*model.parameters(), *inference_parameters(phase.objective)]
            norm = nn.utils.get_total_norm([p.grad for p in clipped if p.grad is not None])
            problem = find_problem(estimate, norm, model, phase.objective, x, names)
            asked = signals.received or ("time" if state.watch.here > settings.time_limit else "")
            asked = asked or ("seconds" if state.spent + clock() - began >= settings.seconds else "")
            problem, asked, row = team.agree(problem, asked, average_batch(estimate, norm))
            if problem is not None:
                raise NotFinite(f"step {state.step + 1}: {problem[1]}")
            nn.utils.clip_grads_with_norm_(clipped, settings.max_grad_norm, norm)
            state.optimizer.step()
            state.spent += clock() - began
            state.step, unsaved = state.step + 1, True
            used_up, asked = asked == "seconds", asked if asked != "seconds" else ""
            state.meter.take(row, estimate.decoder_calls)
            watcher.step(state.step)

            if state.step % settings.log_every == 0 or state.step == phase.last or used_up:
                line = state.line("train", beta=beta, lr=settings.lr) | state.meter.line(model, estimate, team)
                line |= {"decoder_calls": state.meter.decoder_calls} | name_of(phase, phases)
                journal.train(line | step_sizes(phase.objective))

            if asked:
                stopped = asked
            elif run is not None and since_save.seconds > settings.save_every:
                unsaved, since_save = not run.save(state.step, *state.capture()), Stopwatch()

        result = Result(
            steps=state.step,
            best_step=state.looks.best_step or state.step,
            best_valid_bound=state.looks.best,
            seconds=state.watch.seconds,
            stopped=stopped,
            decoder_calls=state.meter.decoder_calls,
        )
        ended = (state.best or Best.of(model, phase.objective)).to_model_file(phase is phases[-1])
        team.run_on_first(lambda: finish(run, result, state.capture() if unsaved else None, ended, config or {}))
        if result.finished and state.best:
            state.best.load_into(model, phase.objective)
    return result


def finish(
    run: Run | None, result: Result, final: State | None, best: dict[str, Tensor], config: dict[str, Any]
) -> None:
    """Save what is not saved yet; result.json comes last: whoever finds it finds all the rest."""
    if run is None:
        return
    done = final is None or run.save(result.steps, *final)
    if result.finished:
        done = run.save_model(best, config, result.best_step) and done
        if done:
            try:
                run.write("result.json", vars(result))
            except OSError as error:
                run.warn(f"result.json not written ({error.strerror})")
                done = False
    if not done:
        reasons = "; ".join(run.warnings)
        raise RunError(
            f"the end of the run could not be saved: {reasons}; free some space and run the same command again"
        )


def inference_parameters(objective: Objective) -> list[nn.Parameter]:
    """What a refinement learns: with phi, it infers. (pi is no part of it.)"""
    refinement: object = objective.refinement
    return list(refinement.parameters()) if isinstance(refinement, nn.Module) else []


def anneal_beta(settings: Training, step: int) -> float:
    """beta of this step (counted from 0): from beta_start to 1 over beta_steps, then 1.

    >>> [round(anneal_beta(Training(beta_start=0.1, beta_steps=3), step), 3) for step in range(5)]
    [0.1, 0.4, 0.7, 1.0, 1.0]
    """
    if step >= settings.beta_steps:
        return 1.0
    return settings.beta_start + (1.0 - settings.beta_start) * step / settings.beta_steps
