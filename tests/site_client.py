"""A whole site for the tests of its API: on a database of its own, asked without a network."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from fastapi.testclient import TestClient

from flatout.record import Record, dump
from flatout.site import accounts
from flatout.site.app import create_app
from flatout.site.settings import Settings
from flatout.site.state import Site
from tests import records, site_records
from tests.site_database import sqlite_url

BASE = "http://127.0.0.1:8321"
SECRET = "a secret of the tests, 0123456789abcdef"


def settings(folder: Path, **more: Any) -> Settings:
    parts: dict[str, Any] = {
        "data_dir": folder,
        "database_url": sqlite_url(folder / "site.sqlite3"),
        "files_url": str(folder / "files"),
        "secret": SECRET,
        "base_url": BASE,
        "publish_per_hour": 0,
        "requests_per_minute": 0,
        "comparisons_per_minute": 0,
    }
    return Settings(**{**parts, **more})


HTML = {"Accept": "text/html"}


class Text(HTMLParser):
    """What a reader of a page sees, its links, and the fields of its forms."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.fields: dict[str, str] = {}
        self.links: list[str] = []
        self.quiet = 0
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.quiet += tag in ("style", "script")
        if tag == "input":
            self.fields[given.get("name") or ""] = given.get("value") or ""
        if tag == "a":
            self.links.append(given.get("href") or "")

    def handle_endtag(self, tag: str) -> None:
        self.quiet -= tag in ("style", "script")

    def handle_data(self, data: str) -> None:
        if not self.quiet:
            self.parts.append(data)

    def __str__(self) -> str:
        return " ".join(" ".join(self.parts).split())


def text(answer: httpx.Response) -> str:
    return str(Text(answer.text))


@dataclass(frozen=True)
class Opened:
    """A site and someone who asks it, as a program or in a browser."""

    app: FastAPI
    site: Site
    http: TestClient

    def token(self, name: str = "ann", scopes: Sequence[str] = ("publish",), **more: Any) -> dict[str, str]:
        """Headers with a new token of that account."""
        with self.site.database.write() as conn:
            _, text = accounts.add_token(conn, name, scopes, **more)
        return {"Authorization": f"Bearer {text}"}

    def publish(self, body: bytes, headers: dict[str, str], **query: str) -> httpx.Response:
        sent = {**headers, "Content-Type": "application/json", "Content-Encoding": "gzip"}
        answer: httpx.Response = self.http.post("/api/v1/runs", content=gzip.compress(body), headers=sent, params=query)
        return answer

    def run(self, number: int = 0, who: str = "ann", replaces: str | None = None, **more: Any) -> str:
        """The id of a run of twelve cells (`site_records.body`) that was just published."""
        query = {"replaces": replaces} if replaces is not None else {}
        answer = self.publish(site_records.body(number, **more), self.token(who), **query)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def page(self, path: str, **headers: str) -> httpx.Response:
        """As a browser asks."""
        answer: httpx.Response = self.http.get(path, headers={**HTML, **headers}, follow_redirects=False)
        return answer

    def text(self, path: str) -> str:
        return text(self.page(path))

    def word(self, path: str) -> str:
        """The secret of a form on that page."""
        return Text(self.page(path).text).fields["csrf"]

    def send(self, path: str, form: str, headers: dict[str, str] | None = None, **fields: str) -> httpx.Response:
        """A form as a browser sends it; `form`: the page that it stands on."""
        data = {"csrf": self.word(form), **fields}
        sent = {**HTML, **(headers or {})}
        answer: httpx.Response = self.http.post(path, data=data, headers=sent, follow_redirects=False)
        return answer

    def sign_in(self, name: str = "ann", scopes: Sequence[str] = ("publish",)) -> str:
        """The new token that it was done with."""
        token = self.token(name, scopes)["Authorization"].removeprefix("Bearer ")
        answer = self.send("/account/sign-in", "/account", token=token)
        assert (answer.status_code, answer.headers["location"]) == (303, "/account")
        return token

    def close(self) -> None:
        self.site.database.close()


Open = Callable[..., "Opened"]
"""The fixture `open_site`."""


def opened(folder: Path, *, client: tuple[str, int] = ("192.0.2.7", 5000), **more: Any) -> Opened:
    app = create_app(settings(folder, **more))
    http = TestClient(app, base_url=app.state.site.settings.base_url, client=client, raise_server_exceptions=False)
    return Opened(app, app.state.site, http)


def record(number: int = 0, tok_s: float = 100.0, **more: Any) -> Record:
    """A small record; each number another one."""
    cells = [
        records.prefill("8K", 8192, 9_000.0 + number, 910.0),
        records.decode("8K", 8192, 1, tok_s, ttft_ms=20.0, itl_ms=10.0, active=1.0, completed=9, output=3000.0),
        records.decode("8K", 8192, 4, tok_s * 3, ttft_ms=30.0, itl_ms=13.0, active=4.0, completed=9, output=9000.0),
    ]
    return records.record(cells, **{"id": f"20261130T0241{number % 60:02}Z-model-engine-{number}", **more})


def body(number: int = 0, **more: Any) -> bytes:
    return dump(record(number, **more)).encode()


def content(number: int = 0) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(body(number))
    return made


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The answer's problem, after a look at whether it is one as it must be."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    told: dict[str, Any] = answer.json()
    assert told["status"] == status and told["title"] and len(told["detail"].split()) >= 3, told
    return told
