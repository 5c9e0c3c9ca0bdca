"""The command line: one verb, one function, in bsvi/commands. Nothing here imports torch, so that --help is quick."""

import os
import sys
from importlib import import_module

from bsvi.files import printable

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
# 2 wrong words on the command line, 3 NaN or infinity in training, 130 saved after SIGINT, 143 saved after SIGTERM; one
# more signal, over a second later, kills at once.
OK, FAILED, USAGE, NOT_FINITE = 0, 1, 2, 3


def usage() -> str:
    verbs = "\n".join(f"  {verb:9} {text}" for verb, text in VERBS.items())
    return f"usage: bsvi VERB ...\n\n{verbs}\n\nbsvi VERB --help tells more. bsvi --version says which this is."


def main(words: list[str] | None = None) -> int:
    """Run one command and return its exit code; an error that a user can cause is one line."""
    words = sys.argv[1:] if words is None else words
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return OK if words else USAGE
    if words[0] == "--version":
        from bsvi import __version__

        print(f"bsvi {__version__}")
        return OK
    verb, *rest = words
    if verb not in VERBS:
        import difflib

        close = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the verbs are {', '.join(VERBS)}"
        print(f"bsvi: unknown verb {verb!r}; {hint}", file=sys.stderr)
        return USAGE
    try:
        code = import_module(f"bsvi.commands.{verb}").main(rest)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read our output has left: not our fault, and nothing to say to nobody
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (ValueError, OSError, RuntimeError, ArithmeticError, ImportError) as error:
        if _ours(error):
            print(f"bsvi {verb}: {_one_line(error)}", file=sys.stderr)
            return NOT_FINITE if type(error).__name__ == "NotFinite" else FAILED
        raise
    except KeyboardInterrupt:
        print(f"bsvi {verb}: interrupted", file=sys.stderr)
        return 130


def _ours(error: BaseException) -> bool:
    """Whether the message was written for the user: raised by our own code or by the system, not deep inside a library."""
    if isinstance(error, OSError):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("bsvi.")


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return printable(f"{error.filename or 'a file'}: {error.strerror}", 2000)
    return printable(error, 2000)


def entry() -> None:
    """The console script."""
    sys.exit(main())
