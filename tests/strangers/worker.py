"""Runs verbs for the fuzz tests in a process of its own, which may take little memory and never answers late.

Reads lines of JSON words from stdin, and answers each with a line: exit code, what was said, and whether it was a traceback.
"""

import contextlib
import io
import json
import resource
import sys
import traceback

MEMORY = 1 << 30  # bytes that a verb may take on top of the program itself, whatever the folder holds


def answer(words):
    from bsvi.cli import main

    said, printed = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
        try:
            code, trace = main(words), ""
        except SystemExit as left:
            code, trace = left.code, ""
        except BaseException:
            code, trace = None, traceback.format_exc()
    return {"code": code, "stderr": said.getvalue(), "stdout": printed.getvalue(), "traceback": trace}


def serve():
    import torch

    import bsvi.report.make
    from tests.training.faults import limit_memory

    torch.set_num_threads(1)
    answers = sys.stdout
    bsvi.report.make.FIRST_FIGURES = ()
    bsvi.report.make.FIGURES = ()  # they take nine tenths of a report's time; test_pictures.py has what they read
    for words in json.loads(sys.stdin.readline()):  # import and warm up all that is needed before memory is counted
        answer(words)
    limit_memory(MEMORY)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        reply = answer(json.loads(line))
        reply["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    serve()
