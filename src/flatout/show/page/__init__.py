"""The page: a record, or a comparison, as one self-contained HTML file."""

from flatout.show.page.identity import title, verdict
from flatout.show.page.record import Fragment, fragment, render
from flatout.show.page.shown import Limit

__all__ = ["Fragment", "Limit", "fragment", "render", "title", "verdict"]
