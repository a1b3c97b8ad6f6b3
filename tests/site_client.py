"""A whole site for the tests of its API: on a database of its own, asked without a network."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
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
from tests import records

BASE = "http://127.0.0.1:8321"
SECRET = "a secret of the tests, 0123456789abcdef"


def settings(folder: Path, **more: Any) -> Settings:
    parts: dict[str, Any] = {
        "data_dir": folder,
        "database_url": f"sqlite:///{folder / 'site.sqlite3'}",
        "files_url": str(folder / "files"),
        "secret": SECRET,
        "base_url": BASE,
        "publish_per_hour": 0,
        "requests_per_minute": 0,
        "comparisons_per_minute": 0,
    }
    return Settings(**{**parts, **more})


@dataclass(frozen=True)
class Opened:
    """A site and someone who asks it."""

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

    def close(self) -> None:
        self.site.database.close()


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
