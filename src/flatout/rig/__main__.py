"""`python -m flatout.rig [--lean] [--cores 0,1] < config.json`: a sender in a process of its own, for `RigHandle`.

Prints one line of JSON ({"url": …, "port": …, "pid": …}) once it serves. `--lean`: the lean sender.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from flatout.rig.config import ConfigError, RigConfig
from flatout.rig.lean import LeanServer
from flatout.rig.server import RigServer, serve
from flatout.rig.sockets import SocketServer


def main() -> None:
    """Exit code 2 for a config that makes no sense, 1 for an address that cannot be bound."""
    parser = argparse.ArgumentParser(prog="python -m flatout.rig", description="A server of exactly known speed.")
    parser.add_argument("--cores", default="", help="pin to these CPU cores, e.g. 0,1")
    parser.add_argument("--lean", action="store_true", help="the lean sender, for high rates")
    options = parser.parse_args()
    if options.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in options.cores.split(",")})
    try:
        config = RigConfig.from_dict(json.loads(sys.stdin.read() or "{}"))
    except (ConfigError, ValueError, TypeError, AttributeError) as error:
        print(f"bad config: {error}", file=sys.stderr)
        raise SystemExit(2) from None

    def ready(server: SocketServer) -> None:
        print(json.dumps({"url": server.url, "port": server.port, "pid": os.getpid()}), flush=True)

    try:
        serve(LeanServer(config) if options.lean else RigServer(config), ready)
    except OSError as error:
        print(f"cannot serve on {config.host} port {config.port}: {error.strerror or error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
