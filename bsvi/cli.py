"""The command line: one verb, one function, in bsvi/commands. Nothing here imports torch, so that --help is quick."""

import contextlib
import os
import re
import sys
from importlib import import_module

from bsvi.system.errors import NotFinite, is_out_of_memory
from bsvi.system.files import printable
from bsvi.tables.plugins import load_plugins
from bsvi.tables.words import suggest

VERBS = {
    "train": "train one method on one experiment; run the same command again to resume",
    "evaluate": "log-likelihood, ELBO*, KL*, Reconstruction* of a trained run, with errors",
    "gap": "what the encoder loses: amortization and approximation gap of a run",
    "sample": "images from a trained run: prior, reconstructions, the paper's latent figure",
    "sweep": "train and evaluate several methods and seeds; resumable",
    "report": "tables, figures and one page from run folders",
    "data": "list, fetch and check the data sets",
    "bench": "speed of the decoder and of whole steps, as ratios measured in one run",
    "plan": "operations, memory and hours of a table of runs, for this machine or another, before it is started",
}

# Exit codes (docs/training.md): 0 done (or saved after SIGUSR1, or at the time limit), 1 an error that the user can act on,
# 2 wrong words on the command line, 3 NaN or infinity in training, 129, 130, 143 saved after SIGHUP, SIGINT, SIGTERM; one
# more signal, over a second later, kills at once.
OK, FAILED, USAGE, NOT_FINITE = 0, 1, 2, 3

# What to lower when there is not enough memory.
_SIZES = "--batch-size, --svi.steps or the networks (--net.hidden, --net.channels), or add --recompute True"
LOWER = {
    "train": _SIZES,
    "sweep": f"--jobs, {_SIZES}",
    "plan": _SIZES,
    "bench": "--batch",
    "evaluate": "--batch-size or --processes",
    "gap": "--batch-size",
    "sample": "--rows and --columns",
}


def usage() -> str:
    verbs = "\n".join(f"  {verb:9} {text}" for verb, text in VERBS.items())
    return f"usage: bsvi VERB ...\n\n{verbs}\n\nbsvi VERB --help tells more. bsvi --version says which this is."


def main(words: list[str] | None = None) -> int:
    """Run one command and return its exit code; an error that a user can cause is one line, which names the verb."""
    words = sys.argv[1:] if words is None else words
    prepare_streams()
    try:
        code = run(words)
        flush_output()
        return code
    except BrokenPipeError:  # whoever read our output has left: not our fault, and nothing to say to nobody
        _leave_stdout()
        return OK
    except KeyboardInterrupt:
        _tell(words, "interrupted")
        return 130
    except (ValueError, OSError, RuntimeError, ArithmeticError, ImportError, MemoryError) as error:
        if is_out_of_memory(error):
            _tell(words, _lower(words, str(error)))
        elif _is_for_user(error):
            _tell(words, _one_line(error))
        else:
            raise
        return NOT_FINITE if isinstance(error, NotFinite) else FAILED


def run(words: list[str]) -> int:
    """The exit code of one command."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return OK if words else USAGE
    if words[0] == "--version":
        from bsvi import __version__

        print(f"bsvi {__version__}")
        return OK
    verb, *rest = words
    if verb not in VERBS:
        hint = suggest(verb, VERBS).strip() or f"the verbs are {', '.join(VERBS)}"
        print(f"bsvi: unknown verb {verb!r}; {hint}", file=sys.stderr)
        return USAGE
    load_plugins()
    code: int = import_module(f"bsvi.commands.{verb}").main(rest)
    return code


def prepare_streams() -> None:
    """Print anywhere: to a terminal that knows ASCII only, and to streams that the caller has closed.

    A closed one would give its number to the next file that is opened, and what is printed would go into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)  # gets this number, as the lower ones are taken
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115
        if number and hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="backslashreplace")


def flush_output() -> None:
    """Print what is left; a disk that takes no more is named."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _leave_stdout()
        raise OSError(error.errno, error.strerror, "standard output") from None


def _leave_stdout() -> None:
    """What is still to be printed goes nowhere: Python would complain of it when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(words: list[str], line: str) -> None:
    verb = f" {words[0]}" if words and words[0] in VERBS else ""
    with contextlib.suppress(OSError):
        print(f"bsvi{verb}: {line}", file=sys.stderr, flush=True)


def _lower(words: list[str], text: str) -> str:
    """Out of memory, how much was asked for where the library tells, and what to lower."""
    found = re.search(r"allocate (\d+ bytes|[\d.]+ [KMGT]iB)", text)
    asked = f" ({found[1]} were asked for)" if found else ""
    return f"out of memory{asked}; lower {LOWER.get(words[0] if words else '', 'the sizes asked for')}"


def _is_for_user(error: BaseException) -> bool:
    """Whether the message was written for the user: raised by our own code or by the system, not deep inside a library."""
    if isinstance(error, OSError):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("bsvi.")


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return printable(f"{error.filename or 'a file, or standard output'}: {error.strerror}", 2000)
    return printable(error, 2000)


def entry() -> None:
    """The console script."""
    sys.exit(main())
