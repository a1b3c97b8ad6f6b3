"""What a page of one file has around and in it: its head, the policy that lets nothing else run or load, held files."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

from flatout.show.page.html import Html, raw, tag


def asset(name: str) -> str:
    """The text of one of our own files for pages."""
    return resources.files("flatout.show.page").joinpath(name).read_text(encoding="utf-8")


def source(content: str) -> str:
    """How a Content-Security-Policy names an inline script or sheet: by its SHA-256."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def inline(name: str, content: str) -> Html:
    """Our own file, whole, as the element `name`: its `source` is in the policy."""
    return raw(f"<{name}>{content}</{name}>")


def document(title: str, description: str, body: Html, *, style: str, script: str | None = None) -> str:
    """The whole file. `style`, `script`: what stands inline in it; nothing else has a place."""
    scripts = "" if script is None else f"script-src {source(script)}; "
    policy = (
        f"default-src 'none'; style-src {source(style)}; {scripts}img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="description", content=description),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        inline("style", style),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def held_file(word: str, name: str, kind: str, content: bytes) -> Html:
    """A link that holds its file itself: it needs no script and no network."""
    data = base64.b64encode(content).decode()
    # the data is far longer than a text may be: it is our own base64, which needs no escaping
    opened = tag("a", word, download=name, class_="file", href="@")
    return Html(opened.replace('href="@"', f'href="data:{kind};base64,{data}"', 1))
