"""From values to a page of one file: the templates, the guard that every value passes, and the policy in its head."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from flatout.show.safe import clean

LONGEST: Final = 20_000
"""Characters of any one text in a page."""


def guard(value: Any) -> Any:
    """What an expression puts into a page: markup that was made by a template or a chart as it is, nothing as nothing,
    and every other text harmless (no control, bidirectional or zero-width characters). Jinja escapes it then."""
    if value is None:
        return ""
    return value if isinstance(value, Markup) else clean(value, LONGEST)


@cache
def environment() -> Environment:
    return Environment(
        loader=PackageLoader("flatout.show.page", "templates"), autoescape=True, undefined=StrictUndefined,
        finalize=guard, trim_blocks=True, lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip


def fill(template: str, **content: Any) -> Markup:
    """The template with its values: markup, since each of them passed the guard and was escaped."""
    return Markup(environment().get_template(template).render(content))


@cache
def asset(name: str) -> str:
    """The text of one of our own files for pages."""
    return resources.files("flatout.show.page").joinpath(name).read_text(encoding="utf-8")


def source(content: str) -> str:
    """How a Content-Security-Policy names an inline script or sheet: by its SHA-256."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def document(template: str, *, style: str, script: str | None = None, **content: Any) -> str:
    """The whole file. `style`, `script`: our own text that stands inline in it; nothing else has a place."""
    scripts = "" if script is None else f"script-src {source(script)}; "
    policy = (
        f"default-src 'none'; style-src {source(style)}; {scripts}img-src data:; base-uri 'none'; form-action 'none'"
    )
    inline = {"style": Markup(style), "script": None if script is None else Markup(script), "policy": Markup(policy)}
    return str(fill(template, **inline, **content))


def held_file(kind: str, content: bytes) -> Markup:
    """The address of a link that holds its file itself: it needs no script and no network. Our own base64, whole."""
    return Markup(f"data:{kind};base64,{base64.b64encode(content).decode()}")
