"""The page: a record as one self-contained HTML file."""

from flatout.show.page.cells import Limit
from flatout.show.page.document import Fragment, fragment, render

__all__ = ["Fragment", "Limit", "fragment", "render"]
