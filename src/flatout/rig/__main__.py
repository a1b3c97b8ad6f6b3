"""`python -m flatout.rig [--cores 0,1] ['{"dialect": "vllm", …}']`: the config as JSON, by argument or on stdin.

Prints one line of JSON ({"url": …, "port": …, "pid": …}) once it serves.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from flatout.rig.config import ConfigError, RigConfig
from flatout.rig.server import RigServer, serve


def main() -> None:
    """Exit code 2 for a config that makes no sense."""
    parser = argparse.ArgumentParser(prog="python -m flatout.rig", description="A server of exactly known speed.")
    parser.add_argument("config", nargs="?", help="the config as JSON (read from stdin if absent)")
    parser.add_argument("--cores", default="", help="pin to these CPU cores, e.g. 0,1")
    options = parser.parse_args()
    if options.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in options.cores.split(",")})
    try:
        config = RigConfig.from_dict(json.loads(options.config or sys.stdin.read() or "{}"))
    except (ConfigError, json.JSONDecodeError, TypeError) as error:
        print(f"bad config: {error}", file=sys.stderr)
        raise SystemExit(2) from None

    def ready(server: RigServer) -> None:
        print(json.dumps({"url": server.url, "port": server.port, "pid": os.getpid()}), flush=True)

    try:
        serve(config, ready)
    except OSError as error:
        print(f"cannot serve on {config.host} port {config.port}: {error.strerror or error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
