"""``python -m bsvi.sweeps.child PARENT WORDS``: ``bsvi WORDS`` that saves and leaves when its parent has died.

The kernel could send the signal (PR_SET_PDEATHSIG), but it sends one for every thread of the parent that ends: with Ray's
many threads training would get a second one before it has saved, which kills it.
"""

import os
import runpy
import signal
import sys
import threading
import time


def watch_parent(parent: int, every: float = 0.5) -> None:
    """Wait for the end of the parent, then send this process one SIGTERM."""
    while os.getppid() == parent:
        time.sleep(every)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=watch_parent, args=(int(sys.argv[1]),), daemon=True).start()
    sys.argv = ["bsvi", *sys.argv[2:]]
    runpy.run_module("bsvi", run_name="__main__")
