"""What the site takes of anybody: comparisons, connections, names that it answers to, and what holds when all else
fails."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import uvicorn

from flatout.site import accounts, drawer, drawings, problems
from flatout.site.api.models import Comparison
from flatout.site.errors import Refused
from flatout.site.serve import protocol
from flatout.site.store import RunRow
from tests import site_records
from tests.site_client import Open, Opened, body, content, problem

PAGE = {"Accept": "text/html"}


@pytest.fixture(scope="module", autouse=True)
def _no_process_left() -> Iterator[None]:
    yield
    drawer.DRAWER.close()


# --- comparisons ----------------------------------------------------------------------------------------------------


def test_too_many_cells_are_refused_with_words(site: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 s of computing and 3.4 GiB for each question of anybody, if they were not."""
    assert drawings.MOST_CELLS < 6_000
    monkeypatch.setattr(drawings, "MOST_CELLS", 20)
    ids = [("r", site.run(number, model=f"m{number}")) for number in range(2)]
    told = problem(site.http.get("/api/v1/compare", params=ids), 422)
    assert "24 cells together" in told["detail"] and "flatout compare" in told["detail"] and told["place"] == "r"
    page = site.http.get("/compare", params=ids, headers=PAGE)
    assert page.status_code == 422 and "24 cells together" in page.text and "Make A" in page.text


def test_a_program_gets_what_the_command_prints(site: Opened) -> None:
    ids = [site.publish(site_records.body(n, speed=1 + n), site.token()).json()["id"] for n in range(2)]
    answer = site.http.get("/api/v1/compare", params=[("r", one) for one in ids])
    made = Comparison.model_validate(answer.json())
    assert [side.name for side in made.sides] == ids and answer.headers["content-type"] == "application/json"
    assert made.pairs[0].mean_ratio == pytest.approx(2.0, rel=0.01)


def test_what_cannot_be_compared_is_told(site: Opened) -> None:
    one = json.dumps({**content(1), "cells": content(1)["cells"][:1]}).encode()
    two = json.dumps({**content(2), "cells": content(2)["cells"][1:2]}).encode()
    assert "error" in drawer.comparison_data([one], ["alone"]) and "error" in drawer.comparison([one], ["alone"])
    ids = [site.publish(each, site.token()).json()["id"] for each in (one, two)]
    assert site.http.get("/api/v1/compare", params=[("r", i) for i in ids]).status_code in (200, 422)


def test_those_who_come_while_some_wait_are_sent_away_at_once(site: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty at once: three are made or wait, the others hear so, and the site answers on."""
    going, on = threading.Semaphore(0), threading.Event()

    def slow(*_: Any) -> dict[str, str]:
        going.release()
        assert on.wait(30)
        return {"json": "{}"}

    ids = [site.publish(body(number), site.token()).json()["id"] for number in range(9)]
    monkeypatch.setattr(drawer.DRAWER, "draw", slow)
    pairs = [[("r", a), ("r", b)] for a in ids for b in ids if a != b][:60]
    with ThreadPoolExecutor(60) as threads:
        asked = [threads.submit(site.http.get, "/api/v1/compare", params=pair) for pair in pairs]
        for _ in range(3):
            assert going.acquire(timeout=30)
        end = time.monotonic() + 30
        while sum(one.done() for one in asked) < len(pairs) - 3 and time.monotonic() < end:
            time.sleep(0.02)
        assert site.http.get("/healthz").status_code == 200
        away = [one.result() for one in asked if one.done()]
        on.set()
        made = [one.result(timeout=30) for one in asked]
    assert len(away) == len(pairs) - 3 and {one.status_code for one in away} == {503}
    assert all(int(one.headers["retry-after"]) > 0 for one in away)
    assert sorted({one.status_code for one in made}) == [200, 503]


def test_comparisons_have_a_limit_of_their_own_by_size(open_site: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawings, "CELLS_A_COUNT", 10)
    site = open_site(comparisons_per_minute=4)
    ids = [site.publish(site_records.body(number), site.token()).json()["id"] for number in range(3)]
    for _ in range(3):  # the second time it is kept
        assert site.http.get("/compare", params=[("r", ids[0]), ("r", ids[1])], headers=PAGE).status_code == 200
    told = problem(site.http.get("/api/v1/compare", params=[("r", ids[0]), ("r", ids[2])]), 429)
    assert "comparisons" in told["detail"], "24 cells count as three of four"
    assert site.http.get("/", headers=PAGE).status_code == 200


def test_the_cost_grows_with_the_cells() -> None:
    def row(cells: int) -> RunRow:
        made = object.__new__(RunRow)
        object.__setattr__(made, "cells", cells)
        return made

    assert (
        drawings.comparison_cost([row(10), row(20)]) == 1 and drawings.comparison_cost([row(2_000), row(2_000)]) == 11
    )
    with pytest.raises(Refused):
        drawings.comparison_cost([row(2_000), row(2_001)])


# --- connections ----------------------------------------------------------------------------------------------------


async def _app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def port() -> Iterator[int]:
    """A server with our protocol: five connections of one address, 0.6 s for a head."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        config = uvicorn.Config(_app, http=protocol(5, 0.6), lifespan="off", log_level="error", timeout_keep_alive=30)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(20)


def _connected(port: int, first: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=15)
    if first:
        made.sendall(first)
    return made


HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def _closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\nHo"])
def test_a_head_that_does_not_come_ends_the_connection(port: int, first: bytes) -> None:
    with _connected(port, first) as connection:
        assert _closed(connection)


def test_a_head_that_drips_ends_the_connection(port: int) -> None:
    with _connected(port) as connection:
        with pytest.raises(OSError):
            for _ in range(200):
                connection.sendall(b"E")
                time.sleep(0.05)
        assert _closed(connection)


def _ok(connection: socket.socket) -> bool:
    """Reads an answer, in however many parts it comes; whether it is the whole one."""
    got = b""
    while not got.endswith(b"\r\n\r\nok"):
        part = connection.recv(4096)
        if not part:
            return False
        got += part
    return True


def test_the_head_of_a_later_request_has_its_time_too(port: int) -> None:
    with _connected(port, HEAD) as connection:
        assert _ok(connection)
        time.sleep(1.0)  # kept open between requests
        connection.sendall(HEAD)
        assert _ok(connection)
        connection.sendall(HEAD[:10])
        assert _closed(connection)


def test_a_body_may_take_longer_than_a_head(port: int) -> None:
    with _connected(port, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nab") as connection:
        time.sleep(1.0)
        connection.sendall(b"cd")
        assert _ok(connection)


def test_one_address_has_so_many_connections(port: int) -> None:
    held = []
    for _ in range(5):
        held.append(_connected(port, HEAD))
        assert _ok(held[-1])
    with _connected(port, HEAD) as sixth:
        assert _closed(sixth)
    for connection in held:
        connection.close()
    end = time.monotonic() + 15
    while time.monotonic() < end:
        with _connected(port, HEAD) as again:
            try:
                if _ok(again):
                    return
            except ConnectionError:
                pass
    raise AssertionError("connections that ended still count")


# --- names, proxies, cookies ----------------------------------------------------------------------------------------


def test_a_site_for_a_team_answers_to_this_machine_alone(open_site: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Box.lan")
    site = open_site(host="0.0.0.0", base_url="http://speed.lan:8321")
    good = ["speed.lan:8321", "box", "box.lan:8321", "BOX.local", "127.0.0.1:8321", "localhost", "[::1]:8321"]
    bad = ["evil.example", "box.evil.example", "192.0.2.1:8321", "speed.lan.evil.example", "local", "[2001:db8::1]"]
    assert [site.http.get("/healthz", headers={"Host": host}).status_code for host in good] == [200] * len(good)
    for host in bad:
        told = problem(site.http.get("/api/v1/boards", headers={"Host": host}), 421)
        assert "--base-url http://NAME" in told["detail"] and "evil" not in told["detail"]


@pytest.mark.parametrize(
    ("here", "host", "status"),
    [
        ("198.51.100.7", "198.51.100.7:8321", 200),
        ("::ffff:198.51.100.7", "198.51.100.7:8321", 200),
        ("2001:db8::7", "[2001:db8:0::7]:8321", 200),
        ("198.51.100.7", "198.51.100.8:8321", 421),
    ],
)
def test_an_address_is_this_machines_where_the_connection_came_in(
    open_site: Open, here: str, host: str, status: int
) -> None:
    site = open_site(host="0.0.0.0", base_url="http://speed.lan:8321")
    app = site.app

    async def at(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "server": (here, 8321)}, receive, send)

    import anyio

    async def ask() -> int:
        transport = httpx.ASGITransport(at)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            return (await http.get("/healthz", headers={"Host": host})).status_code

    assert anyio.run(ask) == status


@pytest.mark.parametrize(
    ("peer", "proxies"),
    [("::ffff:127.0.0.1", ("127.0.0.1",)), ("127.0.0.1", ("::ffff:127.0.0.1",)), ("::ffff:10.1.2.3", ("10.0.0.0/8",))],
)
def test_a_proxy_is_known_in_either_form(open_site: Open, peer: str, proxies: tuple[str, ...]) -> None:
    site = open_site(client=(peer, 5000), proxies=proxies, requests_per_minute=2)
    for number in range(6):
        answer = site.http.get("/api/v1/boards", headers={"X-Forwarded-For": f"::ffff:198.51.100.{number}"})
        assert answer.status_code == 200, "each visitor has a limit of their own"


def test_the_cookie_is_for_this_host_alone_on_https(open_site: Open) -> None:
    site = open_site(base_url="https://speed.example.org", public=True, host="0.0.0.0")
    cookie = site.page("/account").headers["set-cookie"].lower()
    assert cookie.startswith("__host-flatout_session=") and "path=/;" in cookie and "domain" not in cookie
    assert "secure" in cookie and "httponly" in cookie and "samesite=lax" in cookie
    site.sign_in()
    assert "Sign out" in site.text("/account")


# --- accounts, pictures, faults -------------------------------------------------------------------------------------


def test_names_that_are_refused_count_too(open_site: Open) -> None:
    site = open_site(registration="open", publish_per_hour=3)
    site.token("ann")
    page = "/account/new"
    codes = [site.send(page, page, name=name).status_code for name in ("ann", "!", "ann", "bob")]
    assert codes == [422, 422, 422, 429]
    with site.site.database.read() as conn:
        assert accounts.account_named(conn, "bob") is None


@pytest.mark.parametrize("file", ["card.png", "badge.svg"])
def test_a_picture_is_kept_for_five_minutes_at_most_and_only_in_public(open_site: Open, file: str) -> None:
    site = open_site(moderation="queue")
    run = site.run(1)
    site.sign_in()
    waiting = site.http.get(f"/r/{run}/{file}")
    assert waiting.status_code == 200 and waiting.headers["cache-control"] == "private, no-store"
    site.site.store.approve(run, who="mod")
    assert site.http.get(f"/r/{run}/{file}").headers["cache-control"] == "public, max-age=300"
    site.site.store.hide(run, who="mod", reason="r")
    assert site.http.get(f"/r/{run}/{file}", headers={"Accept": "image/*"}).status_code == 410


def test_where_the_page_of_an_error_fails_words_are_left(site: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr(problems, "error_page", broken)
    for path in ("/nothing/here", "/r/abcdefgh2345"):
        answer = site.http.get(path, headers=PAGE)
        assert answer.status_code == 500 and answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert "operator" in answer.text and "secret" not in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff" and "default-src 'none'" in answer.headers[
            "content-security-policy"
        ]  # fmt: skip
    told = site.http.get("/nothing", headers={**PAGE, "Host": "evil.example"})  # refused outside the routes
    assert told.status_code == 500 and told.headers["x-content-type-options"] == "nosniff"


def test_what_may_not_be_seen_is_told_like_what_is_not_there(open_site: Open) -> None:
    site = open_site(moderation="queue")
    ann, bob = site.token("ann"), site.token("bob")
    there = site.publish(body(1), ann).json()["id"]
    bobs = site.publish(body(2), bob).json()["id"]
    nowhere = "a" * 12

    def answers(run: str) -> list[str]:
        said = {"reason": "x", "successor": run}
        found = [
            site.http.get(f"/api/v1/runs/{run}", headers=bob),
            site.http.get("/api/v1/compare", params=[("r", run), ("r", bobs)]),
            site.http.post(f"/api/v1/runs/{run}/withdraw", json={"reason": "x"}, headers=bob),
            site.http.post(f"/api/v1/runs/{run}/report", json={"reason": "x"}, headers=bob),
            site.http.post(f"/api/v1/runs/{run}/report", json={"reason": "x"}),
            site.http.post(f"/api/v1/runs/{bobs}/withdraw", json=said, headers=bob),
            site.publish(body(3), bob, replaces=run),
            site.http.get(f"/r/{run}", headers=PAGE),
        ]
        return [f"{a.status_code} {a.text}".replace(run, "ID").replace(f"/r/{run}", "ID") for a in found]

    assert answers(there) == answers(nowhere)
    mine = site.http.post(f"/api/v1/runs/{there}/report", json={"reason": "x"}, headers=ann)
    assert mine.status_code == 409, "its publisher knows it"
