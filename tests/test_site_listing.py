"""The list of runs: what a URL asks for, what is found, page by page, alike on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import insert

from flatout.site import listing, schema
from flatout.site.database import Database
from flatout.site.errors import Refused
from flatout.site.listing import Filter, Viewer
from flatout.site.store import RunRow, Store
from tests import site_database, site_records

database = site_database.database
SECRET = "a secret of the tests, 0123456789abcdef"

texts = st.text(st.characters(codec="utf-8"), max_size=60)
days = st.dates(date(1970, 1, 1), date(9998, 12, 31))


@given(st.dictionaries(st.sampled_from(["q", "m", "h", "e", "p", "s", "c", "from", "to", "after", "x"]), texts))
def test_any_url_is_understood_or_refused(query: dict[str, str]) -> None:
    try:
        asked = Filter.from_query(query)
    except Refused as error:
        assert error.place in query and error.text
        return
    again = dict(_pairs(asked.to_query()))
    assert Filter.from_query(again) == asked, "a URL says the whole filter"


@given(
    st.builds(
        Filter, q=st.from_regex(r"[a-z0-9%_.\\]{1,9}( [a-z]{1,5})?", fullmatch=True),
        model=st.none() | st.from_regex(r"[a-z0-9/.-]{1,20}", fullmatch=True),
        precision=st.none() | st.just("Q4_K_M"), context_tokens=st.none() | st.integers(1, 2**30),
        first=st.none() | days, after=st.none() | st.just("abc"),
    )
)  # fmt: skip
def test_a_filter_survives_its_url(asked: Filter) -> None:
    assert Filter.from_query(dict(_pairs(asked.to_query()))) == asked


def _pairs(query: str) -> list[tuple[str, str]]:
    from urllib.parse import parse_qsl

    return parse_qsl(query, keep_blank_values=True)


def test_urls_are_short() -> None:
    assert Filter(model="qwen", context_tokens=8192).to_query() == "m=qwen&c=8k"
    assert Filter.from_query({"c": "8192"}) == Filter.from_query({"c": "8K"}) == Filter(context_tokens=8192)
    assert Filter().to_query() == "" and Filter().empty and not Filter(q="a").empty


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ({"from": "30.11.2026"}, "from"), ({"to": "2026-02-30"}, "to"), ({"c": "max"}, "c"), ({"c": "eight"}, "c"),
        ({"from": "2026-11-02", "to": "2026-11-01"}, "to"), ({"q": "a " * 99}, "q"), ({"m": "x" * 201}, "m"),
        ({"from": "0001-01-01"}, "from"), ({"c": "99999999999999999999"}, "c"), ({"to": "９999-01-01"}, "to"),
    ],
)  # fmt: skip
def test_what_cannot_be_looked_for_is_refused_with_its_place(query: dict[str, str], place: str) -> None:
    with pytest.raises(Refused) as error:
        Filter.from_query(query)
    assert error.value.place == place


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63 - 1))
def test_a_position_comes_back(started_us: int, run_id: int) -> None:
    text = listing.position(started_us, run_id, SECRET)
    assert len(text) < 40 and listing.read_position(text, SECRET) == (started_us, run_id)
    with pytest.raises(Refused):
        listing.read_position(text, SECRET + "x")


@given(texts)
def test_a_made_up_position_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        listing.read_position(text, SECRET)


MODELS = ("Qwen/Qwen3.5-4B", "Qwen/Qwen3.5-32B", "meta/Llama-4_70%", "mistral/Märchen")
GPUS = ("H200", "RTX 4090", "B200")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Forty runs, each an hour after the one before, some in pairs at the same time; read only."""
    folder = tmp_path_factory.mktemp("listing")
    url = site_database.new_url(request.param, folder)
    base = Database.open(url)
    made = site_records.store(base, folder)
    for i in range(40):
        began = datetime(2026, 11, 1 + i // 10, i % 10 // 2, tzinfo=UTC)
        taken = site_records.taken(
            made.settings, i, started=began, model=MODELS[i % 4], gpu=GPUS[i % 3], engine=("vllm", "sglang")[i % 2],
            quantization=("BF16", "Q4_K_M")[i // 20], speculation=("none", "EAGLE3")[i % 5 == 0],
        )  # fmt: skip
        made.publish(taken, account_id=None, who="local")
    yield made
    base.close()
    site_database.drop(url)


def found(store: Store, viewer: Viewer | None = None, *, limit: int = 200, **query: str) -> listing.Page:
    with store.database.read() as conn:
        return listing.find(conn, Filter.from_query(query), limit=limit, secret=SECRET, viewer=viewer)


def ids(page: listing.Page) -> list[str]:
    return [row.public_id for row in page.rows]


def expected(store: Store, fits: Any) -> list[str]:
    rows = found(store).rows
    assert [(r.started_us, r.id) for r in rows] == sorted(((r.started_us, r.id) for r in rows), reverse=True)
    return [row.public_id for row in rows if fits(row)]


def _day(row: RunRow) -> int:
    return datetime.fromtimestamp(row.started_us / 1e6, UTC).day


def test_each_filter_finds_what_it_says(store: Store) -> None:
    rows = found(store).rows
    assert len(rows) == 40
    qwen, h200 = rows[0].model_key, next(r.hardware_key for r in rows if r.hardware.startswith("H200"))
    looks = {
        (("m", qwen),): lambda r: r.model_key == qwen,
        (("h", h200), ("e", "vllm")): lambda r: r.hardware_key == h200 and r.engine_key == "vllm",
        (("p", "Q4_K_M"),): lambda r: r.precision == "Q4_K_M",
        (("s", "eagle3"),): lambda r: r.speculation == "eagle3",
        (("from", "2026-11-02"), ("to", "2026-11-03")): lambda r: _day(r) in (2, 3),
        (("q", "QWEN 32b"),): lambda r: "Qwen3.5-32B" in r.model,
        (("q", "rtx"), ("s", "eagle3"), ("from", "2026-11-02")): lambda r: "RTX" in r.hardware
        and r.speculation == "eagle3" and _day(r) >= 2,
        (("c", "8k"),): lambda r: True,
        (("q", "4_70%"),): lambda r: "Llama" in r.model,
        (("q", "Märchen"),): lambda r: "rchen" in r.model,
        (("q", rows[7].public_id),): lambda r: r.id == rows[7].id,
        (("q", rows[7].public_id[:7].upper()),): lambda r: r.id == rows[7].id,
        (("q", rows[9].record_id),): lambda r: r.id == rows[9].id,
    }  # fmt: skip
    for query, fits in looks.items():
        wanted = expected(store, fits)
        assert ids(found(store, **dict(query))) == wanted and wanted, query


def test_the_ways_to_the_rows_give_the_same(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Led by the narrowest filter, in steps, and walked."""
    queries = ({"q": "qwen vllm", "p": "BF16"}, {"m": found(store).rows[3].model_key, "c": "32k"}, {"q": "200 eagle"})
    plain = [ids(found(store, **query)) for query in queries]
    assert all(plain)
    monkeypatch.setattr(listing, "_CHUNK", 3)
    assert [ids(found(store, **query)) for query in queries] == plain
    monkeypatch.setattr(listing, "NARROW", 0)
    assert [ids(found(store, **query)) for query in queries] == plain


@pytest.mark.parametrize("query", [{}, {"q": "qwen"}, {"e": "vllm", "c": "8k"}, {"from": "2026-11-02"}])
def test_pages_hold_each_run_once(store: Store, query: dict[str, str]) -> None:
    whole = ids(found(store, **query))
    seen: list[str] = []
    after: dict[str, str] = {}
    for _ in range(50):
        page = found(store, limit=7, **query, **after)
        seen += ids(page)
        if page.next is None:
            break
        after = {"after": page.next}
    assert seen == whole
    assert len(page.rows) == (len(whole) - 1) % 7 + 1


@pytest.mark.parametrize(
    ("query", "word"),
    [({"m": "gpt-6"}, "gpt-6"), ({"s": "'; DROP TABLE runs; --"}, "speculative method"), ({"q": "%"}, None),
     ({"q": "qwen nothing"}, "all words"), ({"c": "77"}, None), ({"q": "_______"}, "all words"),
     ({"q": "\\"}, "all words"),
     ({"h": "<b>\x00"}, "hardware")],
)  # fmt: skip
def test_what_is_not_there_is_an_empty_list_with_words(store: Store, query: dict[str, str], word: str | None) -> None:
    page = found(store, **query)
    if query == {"q": "%"}:
        assert {row.model for row in page.rows} == {"meta/Llama-4_70%"}, "no wildcard"
        return
    assert page.rows == [] and page.next is None
    assert word is None or word in " ".join(page.notes)


def test_labels_of_the_filters_come_with_the_page(store: Store) -> None:
    row = found(store).rows[0]
    assert found(store, m=row.model_key, e="vllm").labels == {"model": row.model, "engine": "vllm"}


def test_choices_are_counted(store: Store) -> None:
    with store.database.read() as conn:
        there = listing.choices(conn)
    assert {c.label: c.runs for c in there.model} == dict.fromkeys(MODELS, 10)
    assert [c.runs for c in there.hardware] == [14, 13, 13]
    assert {c.key: c.runs for c in there.speculation} == {"none": 32, "eagle3": 8}
    assert [c.key for c in there.context] == ["1k", "8k", "32k"]
    for kind, choices in (("m", there.model), ("h", there.hardware), ("p", there.precision), ("c", there.context)):
        assert all(found(store, **{kind: choice.key}).rows for choice in choices)


def test_who_sees_what_waits(database: Database, tmp_path: Path) -> None:
    store = site_records.store(database, tmp_path, moderation="queue")
    with database.write() as conn:
        for i in (1, 2):
            conn.execute(insert(schema.accounts).values(id=i, name=f"user{i}", created_us=0))
    takes = [site_records.taken(store.settings, i, model=f"M{i}") for i in range(4)]
    made = [store.publish(t, account_id=1 + i % 2, who="u").public_id for i, t in enumerate(takes)]
    store.approve(made[0], who="mod")
    store.hide(made[2], who="mod", reason="spam")
    assert ids(found(store)) == [made[0]]
    assert ids(found(store, Viewer(1))) == [made[0]]
    assert ids(found(store, Viewer(2))) == [made[3], made[1], made[0]]
    assert ids(found(store, Viewer(9, moderator=True))) == [made[3], made[1], made[0]]
    assert ids(found(store, Viewer(2), q="m3")) == [made[3]] and ids(found(store, Viewer(1), q="m3")) == []
    assert ids(found(store, Viewer(1, own=True))) == [made[2], made[0]]
    assert ids(found(store, Viewer(None, own=True))) == []
    assert ids(found(store, Viewer(9, moderator=True, state="hidden"))) == [made[2]]
    assert ids(found(store, Viewer(1, state="hidden"))) == []
    assert found(store).rows[0].account == "user1"
    pages, after = [], {}
    for _ in range(9):
        page = found(store, Viewer(2), limit=1, **after)
        pages += ids(page)
        if page.next is None:
            break
        after = {"after": page.next}
    assert pages == [made[3], made[1], made[0]]


words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


def test_any_words_can_be_looked_for(store: Store) -> None:
    """On either database the same rows as a plain search in their names."""
    rows = found(store).rows

    def holds(row: RunRow, word: str) -> bool:
        low = "".join(c.lower() if c.isascii() else c for c in word)
        names = (row.model, row.hardware, row.engine, row.precision, row.speculation)
        inside = any(low in "".join(c.lower() if c.isascii() else c for c in name) for name in names)
        return inside or row.record_id == word or (len(word) > 3 and row.public_id.startswith(low))

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(
            st.one_of(words, st.sampled_from(["qwen", "200", "%", "_", "4B", "Ä", "ä", "\\", "-", "m"])), max_size=4
        )
    )
    def check(some: list[str]) -> None:
        try:
            asked = Filter.from_query({"q": " ".join(some)})
        except Refused:
            return
        wanted = [r.public_id for r in rows if all(holds(r, word) for word in asked.q.split())]
        assert ids(found(store, q=asked.q)) == wanted

    check()
