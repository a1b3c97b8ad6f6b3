"""`python -m flatout`."""

from flatout.cli import main

main()
