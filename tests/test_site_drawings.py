"""What is drawn of runs: once, kept while they are shown, by a process that is bounded; and small pictures."""

from __future__ import annotations

import gzip
import io
import json
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
import zipfile
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from multiprocessing.connection import Pipe
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.site import answers, drawings, html
from flatout.site.drawer import DRAWER, NOT_AGAIN_MOST_S, NOT_AGAIN_S, Busy, Drawer, DrawingFailed, Failures, unpacked
from flatout.site.drawings import Ahead, Few, Kept
from flatout.site.errors import NotFound, Unavailable
from flatout.site.history import Dated, change_points
from flatout.site.pages import pictures
from tests import site_records
from tests.site_client import Open, Opened, text


@pytest.fixture(scope="module", autouse=True)
def _no_process_left() -> Iterator[None]:
    yield
    DRAWER.close()


@given(st.lists(st.tuples(st.binary(max_size=3000), st.sampled_from([0, 6])), max_size=6))
def test_pieces_in_a_row_are_one_gzip_member(parts: list[tuple[bytes, int]]) -> None:
    pieces = [answers.piece(plain, level) for plain, level in parts]
    made = answers.gzipped(pieces)
    unpacked = zlib.decompressobj(wbits=31)
    plain = b"".join(p for p, _ in parts)
    assert unpacked.decompress(made) == plain and unpacked.eof and not unpacked.unused_data
    assert gzip.decompress(made) == plain


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=40), max_size=4),
       st.dictionaries(st.text(max_size=8), st.binary(max_size=400), max_size=4))  # fmt: skip
def test_what_is_packed_comes_out(meta: dict[str, str], pieces: dict[str, bytes]) -> None:
    packed = answers.pack(meta, pieces)
    told, found = answers.unpack(packed)
    assert told == meta and {name: one.plain for name, one in found.items()} == pieces
    if pieces:
        with pytest.raises(ValueError):
            answers.unpack(packed + b"x")


def test_a_thing_is_drawn_once_and_found_again(tmp_path: Path) -> None:
    kept, made = Kept(tmp_path / "r"), []
    of = "ab" * 32

    def make() -> bytes:
        made.append(1)
        return b"drawn"

    threads = [threading.Thread(target=lambda: kept.get("run", of, make)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and Kept(tmp_path / "r").get("run", of, make) == b"drawn" and len(made) == 1
    assert kept.hashes() == {of}
    kept.forget([of])
    assert not list((tmp_path / "r").iterdir()) and kept.get("run", of, make) == b"drawn" and len(made) == 2


def test_what_is_forgotten_while_it_is_drawn_is_not_kept(tmp_path: Path) -> None:
    kept, of = Kept(tmp_path / "r"), "ef" * 32

    def make() -> bytes:
        kept.forget([of])
        return b"drawn"

    assert kept.get("run", of, make) == b"drawn" and not kept.hashes()
    assert kept.get("run", of, lambda: b"drawn") == b"drawn" and kept.hashes() == {of}


def until(true: Callable[[], bool], what: str, within_s: float = 30.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, f"waited {within_s:.0f} s for {what}"
        time.sleep(0.02)


def test_few_go_in_and_come_out_again() -> None:
    few = Few(1)
    for _ in range(3):
        with few, pytest.raises(Unavailable), few:
            pass
    with pytest.raises(ZeroDivisionError), few:
        raise ZeroDivisionError
    with few:
        pass


def test_runs_have_few_who_wait(site: Opened) -> None:
    """All of them inside: who comes then is told to come again; what is kept is there for everybody."""
    kept, other = site.run(1), site.run(2)
    assert site.page(f"/r/{kept}").status_code == 200
    for _ in range(8):
        drawings.DRAWINGS.__enter__()
    try:
        assert [site.page(f"/r/{run}").status_code for run in (kept, other)] == [200, 503]
    finally:
        for _ in range(8):
            drawings.DRAWINGS.__exit__()


def test_a_run_is_drawn_before_its_first_visitor_comes(open_site: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    site = open_site(moderation="queue")
    old = site.run(19)
    site.site.store.approve(old, who="mod")
    store = site.site.store
    with site.http:
        hashes = {store.row(old).content_hash}
        until(lambda: site.site.drawings.kept.hashes() >= hashes, "the newest to be drawn as the site starts")
        run = site.run(20)
        hashes.add(store.row(run).content_hash)
        until(lambda: site.site.drawings.kept.hashes() >= hashes, "what was published to be drawn")
        store.approve(run, who="mod")

        def never(*_: object) -> None:
            raise AssertionError("it was drawn again")

        monkeypatch.setattr(DRAWER, "draw", never)
        for one in (old, run):
            assert site.page(f"/r/{one}").status_code == 200
    assert not site.site.drawings.ahead.thread.is_alive()


def test_who_waits_for_a_drawing_goes_first() -> None:
    mine = Drawer()
    mine._lock.acquire()
    with pytest.raises(Busy):
        mine.draw("run", ahead=True)
    mine._waiting = 1  # somebody is about to have it
    mine._lock.release()
    with pytest.raises(Busy):
        mine.draw("run", ahead=True)
    assert mine.busy and mine._process is None


def test_the_newest_is_drawn_first_and_what_is_too_much_is_left() -> None:
    drawn: list[str] = []
    busy = threading.Event()
    busy.set()

    def draw(public_id: str) -> None:
        if busy.is_set():
            raise Busy
        drawn.append(public_id)
        if public_id == "r150":
            raise NotFound("gone in the meantime")
        if public_id == "r149":
            raise ValueError

    mine = Ahead(draw)
    for number in range(200):
        mine.add(f"r{number}")
    mine.start()
    time.sleep(0.3)
    assert not drawn
    busy.clear()
    until(lambda: len(drawn) >= drawings.MOST_WAITING, "all to be drawn")
    mine.add("last")
    until(lambda: drawn[-1] == "last", "the last")
    mine.stop()
    assert drawn[:-1] == [f"r{number}" for number in range(199, 99, -1)]


def test_a_full_disk_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("a file where the folder should be")
    kept = Kept(tmp_path / "r")
    assert kept.get("run", "cd" * 32, lambda: b"drawn") == b"drawn"


def test_kept_files_are_bounded(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    for number in range(6):
        kept.get("run", f"{number:064x}", lambda: b"x" * 100)
    (tmp_path / f"run-{'0' * 64}-{'f' * 12}").write_bytes(b"of another version")
    (tmp_path / "not ours").write_bytes(b"stays")
    kept.sweep(most_bytes=250)
    assert len(list(tmp_path.iterdir())) == 2 + 1 and (tmp_path / "not ours").exists()


def test_drawing_that_dies_costs_its_page_and_not_the_next() -> None:
    mine = Drawer()
    content = site_records.body(70)
    try:
        assert mine.draw("run", content, None, 1)["title"].startswith("Qwen3.5-4B on H200")
        assert mine._process is not None
        mine._process.kill()
        mine._process.wait(5)
        assert "No card" not in mine.draw("comparison", [content, content], ["a", "b"])["body"]
        assert mine.draw("card", json.dumps({**json.loads(content), "cells": []}).encode()) == b""
    finally:
        mine.close()


def test_drawing_that_takes_too_long_is_ended_and_not_tried_at_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Drawer()
    content, other = site_records.body(71), site_records.body(72)
    now = [1000.0]
    try:
        mine.warm()
        monkeypatch.setattr("flatout.site.drawer.time", SimpleNamespace(monotonic=lambda: now[0]))
        with monkeypatch.context() as patch:
            patch.setattr("flatout.site.drawer.LONGEST_S", 0.0)
            with pytest.raises(Unavailable, match="too long"):
                mine.draw("run", content, None, 1)
        assert mine._process is None
        for ahead in (False, True):
            with pytest.raises(Unavailable, match="too long"):
                mine.draw("run", content, None, 1, ahead=ahead)
        assert mine._process is None  # nothing was tried
        assert mine.draw("run", other, None, 1)["card"] == "yes"
        now[0] += NOT_AGAIN_S + 1
        assert mine.draw("run", content, None, 1)["card"] == "yes"
        now[0] += 1
        assert mine.draw("run", content, None, 1)["card"] == "yes" and not mine._failures._known
    finally:
        mine.close()


def test_what_fails_again_rests_longer_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now, failures = [0.0], Failures()
    monkeypatch.setattr("flatout.site.drawer.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("flatout.site.drawer.MOST_REMEMBERED", 10)
    rests = []
    for _ in range(12):
        failures.add("run", (b"a", [b"b"]), Unavailable("no"))
        begun = now[0]
        while True:
            try:
                failures.check("run", (b"a", [b"b"]))
                break
            except Unavailable as error:
                assert str(error) == "no"
                now[0] += 1
        rests.append(now[0] - begun)
    assert rests[:3] == [NOT_AGAIN_S, 2 * NOT_AGAIN_S, 4 * NOT_AGAIN_S] and rests[-1] == NOT_AGAIN_MOST_S
    failures.add("card", (b"a",), DrawingFailed("KeyError"))
    failures.check("card", (b"b",))
    failures.check("run", (b"a",))
    with pytest.raises(DrawingFailed, match="KeyError"):
        failures.check("card", (b"a",))
    for number in range(50):
        failures.add("card", (number,), Unavailable("no"))
    assert len(failures._known) == 10


_GREEDY = """
import sys, time
from multiprocessing.connection import Connection
from flatout.site import drawer
drawer.MOST_MEMORY_BYTES = 300 * 1024 * 1024
drawer.MOST_CPU_S = 1.0
drawer.WORKS = {"memory": lambda: len(bytearray(2**30)), "cpu": lambda: sum(iter(int, 1)), "fine": lambda: 1}
drawer.serve(Connection(int(sys.argv[1])))
"""


def test_the_drawing_process_is_bounded() -> None:
    """Memory it is refused; of the processor's time it gets what is allowed, and ends."""
    ours, theirs = Pipe()
    process = subprocess.Popen([sys.executable, "-c", _GREEDY, str(theirs.fileno())], pass_fds=(theirs.fileno(),))
    theirs.close()
    try:
        assert ours.poll(60) and ours.recv() == "ready"
        told = []
        for work in ("fine", "memory", "fine"):
            ours.send((work, ()))
            assert ours.poll(30)
            told.append(ours.recv())
        assert told == [(True, 1), (False, "MemoryError"), (True, 1)]
        ours.send(("cpu", ()))
        assert process.wait(30) == -signal.SIGXCPU
    finally:
        process.kill()
        process.wait(10)
        ours.close()


def test_samples_come_out_of_their_zip_by_their_own_names(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("../../d-8192-1.npz", b"a")
        file.writestr("readme.txt", b"b")
    folder = tmp_path / "in"
    folder.mkdir()
    assert unpacked(packed.getvalue(), folder) == folder and unpacked(None, folder) is None
    assert [path.name for path in folder.iterdir()] == ["d-8192-1.npz"] and len(list(tmp_path.iterdir())) == 1


NUMBERS = st.one_of(st.none(), st.floats(min_value=0, max_value=1e14, allow_nan=False))


@given(st.lists(st.tuples(st.floats(min_value=1e-3, max_value=1e14), NUMBERS, NUMBERS), min_size=1, max_size=30))
def test_traces_are_svg_whatever_the_figures(found: list[tuple[float, float | None, float | None]]) -> None:
    runs = [Dated(i * 10**12, value, low, high, "abc", f"v{i // 4}<") for i, (value, low, high) in enumerate(found)]
    made = pictures.trace(runs, change_points(runs), 'a "label" <b>')
    root = ET.fromstring(made)
    assert sum(1 for node in root.iter() if node.get("class") == "dot") == len(runs)
    assert "nan" not in made and "inf" not in made


@given(st.lists(st.integers(0, 40), min_size=2, max_size=pictures.MOST_DOTS))
def test_names_of_versions_do_not_cover_each_other(versions: list[int]) -> None:
    runs = [Dated(i * 10**12, 100.0, 99.0, 101.0, "abc", f"0.{v}.1") for i, v in enumerate(versions)]
    root = ET.fromstring(pictures.trace(runs, [], "x"))
    at = f"{pictures.TOP - 12:.1f}"
    spans = []
    for node in root.iter():
        if node.tag.endswith("text") and node.get("y") == at:
            x, wide = float(node.get("x", "")), pictures.CHAR_WIDE * len(node.text or "")
            spans.append((x, x + wide) if node.get("text-anchor") == "start" else (x - wide, x))
    spans.sort()
    assert all(one[1] <= other[0] + 0.2 for one, other in pairwise(spans)) and len(spans) <= pictures.MOST_NAMED
    changes = [new for old, new in pairwise(versions) if old != new]
    assert bool(spans) is bool(changes)
    assert not changes or f">0.{changes[-1]}.1</text>" in ET.tostring(root, encoding="unicode")


@given(st.floats(min_value=0, max_value=1e14), st.floats(min_value=1e-6, max_value=1e14))
def test_ticks_lie_between_the_ends(low: float, span: float) -> None:
    found = pictures.ticks(low, low + span)
    slack = span * 1e-9 + low * 1e-9
    assert all(low - slack <= tick <= low + span + slack for tick in found)
    assert len(found) <= 11


@given(st.floats(min_value=0, max_value=1e14), NUMBERS, NUMBERS)
def test_whiskers_are_svg_whatever_the_figures(value: float, low: float | None, high: float | None) -> None:
    row = SimpleNamespace(value=value, low=low, high=high, or_more=high is None)
    parts = html.environment().get_template("parts.html").module
    made = parts.whisker(row, pictures.axis([row], open_ended=row.or_more))  # type: ignore
    if made:
        root = ET.fromstring(made)
        spots = [float(node.get("cx", "0")) for node in root.iter("circle")]
        assert all(0 <= spot <= 176 for spot in spots)


@given(st.text(max_size=90), st.text(max_size=90))
def test_badges_are_svg_whatever_the_texts(left: str, right: str) -> None:
    ET.fromstring(pictures.badge(left, right))


def test_my_data_is_deleted_with_what_was_drawn_of_it(site: Opened, tmp_path: Path) -> None:
    run, kept = site.run(13), site.run(14, who="bert")
    for one in (run, kept):
        assert site.page(f"/r/{one}").status_code == 200
    assert site.page(f"/compare?r={run}&r={kept}").status_code == 200
    hashes = {one: site.site.store.row(one).content_hash for one in (run, kept)}
    assert len(list((tmp_path / "rendered").iterdir())) == 2
    site.sign_in()
    assert "nothing was deleted" in text(site.send("/account/delete", "/account", confirm="bert"))
    assert site.send("/account/delete", "/account", confirm="ann").headers["location"] == "/account?said=deleted"
    stone = site.page(f"/r/{run}")
    assert stone.status_code == 410 and "This run was deleted" in text(stone)
    left = [path.name for path in (tmp_path / "rendered").iterdir()]
    assert len(left) == 1 and hashes[kept] in left[0]
    assert site.page(f"/r/{kept}").status_code == 200


@pytest.mark.parametrize("how", ["delete", "withdraw", "hide", "replace"])
def test_what_is_not_public_any_more_is_not_kept_either(site: Opened, tmp_path: Path, how: str) -> None:
    """At once, whichever way it goes, and though a comparison in memory was made of it."""
    headers = site.token("ann", ("publish", "moderate"))
    run = site.publish(site_records.body(15), headers).json()["id"]
    kept = site.run(16, who="bert")
    for path in (f"/r/{run}", f"/r/{run}/page.html", f"/r/{run}/card.png", f"/r/{kept}", f"/compare?r={run}&r={kept}"):
        assert site.page(path).status_code == 200
    mine = site.site.store.row(run).content_hash
    assert len([path for path in (tmp_path / "rendered").iterdir() if mine in path.name]) == 3
    api = f"/api/v1/runs/{run}"
    if how == "delete":
        done = site.http.delete("/api/v1/me", params={"confirm": "ann"}, headers=headers)
    elif how == "replace":
        done = site.publish(site_records.body(17), headers, replaces=run)
    else:
        done = site.http.post(f"{api}/{how}", json={"reason": "a fan was broken"}, headers=headers)
    assert done.status_code < 300
    there = [path.name for path in (tmp_path / "rendered").iterdir()]
    assert len(there) == 1 and site.site.store.row(kept).content_hash in there[0]
    assert mine not in str(site.site.drawings.kept._held) and "comparison" not in str(site.site.drawings.kept._held)


def test_a_hidden_run_is_drawn_for_moderators_and_not_kept(site: Opened, tmp_path: Path) -> None:
    run = site.run(18)
    site.sign_in("mod", ("moderate",))
    site.site.store.hide(run, who="mod", reason="r")
    told = site.text(f"/r/{run}")
    assert "This run is hidden" in told and "One request alone" in told
    assert not (tmp_path / "rendered").exists() and not site.site.drawings.kept.hashes()
