"""The page: a record as one self-contained HTML file."""

from flatout.show.page.cells import Limit
from flatout.show.page.document import render

__all__ = ["Limit", "render"]
