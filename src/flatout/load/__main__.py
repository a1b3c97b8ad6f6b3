"""`python -m flatout.load FD [CORE]`: one load process, started by `LoadPool` and by nobody else."""

from __future__ import annotations

import os
import signal
import sys

from flatout.load.child import main

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to act on
    if len(sys.argv) > 2 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(sys.argv[2])})
    sys.exit(main(int(sys.argv[1])))
