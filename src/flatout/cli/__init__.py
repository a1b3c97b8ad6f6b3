"""The command line: one module a command group."""

from flatout.cli.app import app, main

__all__ = ["app", "main"]
