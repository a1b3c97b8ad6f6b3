"""Accounts, tokens and how often one may ask."""

from __future__ import annotations

import ipaddress
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, select

from flatout.site import accounts, schema
from flatout.site.accounts import Who
from flatout.site.database import Database
from flatout.site.errors import Conflict, NotFound, Refused, TooMany
from flatout.site.throttle import FAILED_PER_MINUTE, Throttle, network
from tests.site_client import Open, settings
from tests.site_database import database_url, sqlite_url  # noqa: F401


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Database]:
    made = Database.open(sqlite_url(tmp_path / "a.sqlite3"))
    yield made
    made.close()


@pytest.fixture
def conn(base: Database) -> Iterator[Connection]:
    with base.write() as made:
        yield made


def token(conn: Connection, name: str = "ann", *more: Any, **named: Any) -> tuple[Who, str]:
    """A new token, and its text."""
    _, text = accounts.add_token(conn, name, *more, **named)
    who = accounts.whose(conn, text)
    assert who is not None
    return who, text


def deeds(conn: Connection) -> Counter[str]:
    return Counter(conn.scalars(select(schema.deeds.c.what)))


def test_a_token_is_shown_once_and_kept_as_a_hash(conn: Connection) -> None:
    who, text = token(conn, "ann", ["publish"], "laptop", None)
    assert len(text) == len("flatout_") + 43 and who.name == "ann"
    row = conn.execute(select(schema.tokens)).one()
    dump = repr([tuple(r) for table in schema.metadata.sorted_tables for r in conn.execute(select(table))])
    assert text not in dump and text[12:] not in dump
    assert row.start == text[:12] and row.label == "laptop" and row.scopes == "publish"


def test_whose_knows_working_tokens_only(conn: Connection) -> None:
    who, text = token(conn, "ann", ["publish", "moderate"])
    ended, over = token(conn, expires_us=accounts.now_us() + 100_000_000)
    late = schema.tokens.update().where(schema.tokens.c.id == ended.token_id).values(expires_us=accounts.now_us() - 1)
    conn.execute(late)
    assert who.name == "ann" and who.scopes == {"publish", "moderate"} and who.may("moderate") and who.used_us is None
    for wrong in ("", "flatout_", text[:-1], text + "A", text.swapcase(), f"flatout_{'A' * 43}", " " + text, over):
        assert accounts.whose(conn, wrong) is None
    accounts.revoke(conn, who.token_id, by="ann")
    accounts.revoke(conn, who.token_id, by="ann")
    assert accounts.whose(conn, text) is None and accounts.who_by_token(conn, who.token_id, 0) is None
    assert deeds(conn) == {"token revoked": 1, "token made": 2, "account made": 1}


def test_a_closed_account_has_no_tokens(conn: Connection) -> None:
    who, text = token(conn)
    conn.execute(schema.accounts.update().where(schema.accounts.c.id == who.account_id).values(closed_us=1))
    assert accounts.whose(conn, text) is None and accounts.account_named(conn, "ann") is None
    with pytest.raises(Conflict, match="closed"):
        accounts.add_token(conn, "ann")


def test_others_tokens_cannot_be_revoked(conn: Connection) -> None:
    (ann, _), (bob, text) = token(conn, "ann"), token(conn, "bob")
    with pytest.raises(NotFound):
        accounts.revoke(conn, bob.token_id, account_id=ann.account_id, by="ann")
    assert accounts.whose(conn, text) is not None
    with pytest.raises(NotFound):
        accounts.revoke(conn, 7)


def test_a_token_can_be_replaced_and_one_that_was_found_ends_with_what_it_made(conn: Connection) -> None:
    chain = [token(conn)]
    for _ in range(3):  # each made with the one before
        chain.append(token(conn, made_with=chain[-1][0]))
    _, other = token(conn)
    ann = chain[0][0]
    assert [one.parent_id for one in accounts.list_tokens(conn, ann.account_id)].count(None) == 2
    accounts.revoke(conn, ann.token_id, account_id=ann.account_id, by="ann")
    assert [accounts.whose(conn, text) is not None for _, text in chain] == [False, True, True, True]
    accounts.revoke(conn, ann.token_id, account_id=ann.account_id, by="ann", made_too=True)  # of one that ended before
    assert [accounts.whose(conn, text) is not None for _, text in chain] == [False] * 4
    assert accounts.whose(conn, other) is not None and deeds(conn)["token revoked"] == 4


def test_a_token_ends_no_later_than_the_one_that_made_it(conn: Connection) -> None:
    soon = accounts.now_us() + 1_000_000_000
    maker, _ = token(conn, expires_us=soon)
    assert maker.expires_us == soon
    for asked, expected in ((None, soon), (soon + 5, soon), (soon - 5, soon - 5)):
        assert token(conn, expires_us=asked, made_with=maker)[0].expires_us == expected


def test_signing_out_ends_the_sessions_of_that_token_alone(conn: Connection) -> None:
    one, two = token(conn)[0], token(conn)[0]
    accounts.end_sessions(conn, one)
    assert accounts.who_by_token(conn, one.token_id, one.epoch) is None
    now = accounts.who_by_token(conn, one.token_id, one.epoch + 1)
    assert now is not None and now.epoch == one.epoch + 1
    assert accounts.who_by_token(conn, two.token_id, two.epoch) is not None


@pytest.mark.parametrize(
    "name",
    ["", "a", "-a", "a-", "A", "a b", "a" * 40, "ann\n", "ünn", "a/b", "operator", "site", "deleted-1", "a\0b", "‮nna"],
)
def test_names_that_cannot_be(conn: Connection, name: str) -> None:
    with pytest.raises(Refused) as caught:
        accounts.add_account(conn, name)
    assert caught.value.place == "name"


def test_a_name_is_taken_once_though_many_ask_at_once(base: Database) -> None:
    outcomes: list[str] = []

    def ask() -> None:
        try:
            with base.write() as conn:
                accounts.add_account(conn, "ann")
            outcomes.append("made")
        except Conflict:
            outcomes.append("taken")

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert sorted(outcomes) == ["made"] + ["taken"] * 5


def test_who_is_second_to_a_name_gets_no_token_for_it(
    database_url: str,  # noqa: F811
    open_site: Open,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The form for a new account, whose look at the names came just before another one was committed."""
    site = open_site(database_url=database_url, registration="open")
    site.token("ann")
    looked, asked = accounts._account, []

    def late(conn: Connection, name: str) -> Any:
        asked.append(name)
        return None if len(asked) == 1 else looked(conn, name)

    monkeypatch.setattr(accounts, "_account", late)
    answer = site.send("/account/new", "/account/new", name="ann")
    assert answer.status_code == 422 and "taken" in answer.text and not re.search(r"flatout_[\w-]{43}", answer.text)
    with site.site.database.read() as conn:
        assert len(accounts.all_tokens(conn)) == 1


def test_an_account_has_a_bounded_number_of_working_tokens(conn: Connection) -> None:
    made = [token(conn)[0] for _ in range(accounts.MOST_TOKENS)]
    with pytest.raises(Conflict, match="50 tokens"):
        accounts.add_token(conn, "ann")
    accounts.revoke(conn, made[0].token_id, by="ann")
    accounts.add_token(conn, "ann")


def test_a_number_is_never_given_twice(base: Database) -> None:
    """SQLite would give a deleted token's number to the next one, and with it the sessions it opened."""
    seen = set()
    for number in range(5):
        with base.write() as conn:
            seen.add(token(conn, f"ann{number}")[0].token_id)
            conn.execute(schema.tokens.delete())
    assert len(seen) == 5


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes"),
        ({"label": "x" * 81}, "label"),
        ({"label": "a\u202eb"}, "label"),
        ({"label": "a\0b"}, "label"),
        ({"expires_us": 5}, "expires"),
        ({"expires_us": 2**63}, "expires"),
    ],
)
def test_tokens_that_cannot_be(conn: Connection, more: dict[str, object], place: str) -> None:
    with pytest.raises(Refused) as caught:
        accounts.add_token(conn, "ann", **more)  # type: ignore[arg-type]
    assert caught.value.place == place


def test_the_use_of_a_token_is_noted_once_a_minute(conn: Connection) -> None:
    who, text = token(conn)
    assert accounts.stale_use(who)
    accounts.used(conn, who)
    again = accounts.whose(conn, text)
    assert again is not None and again.used_us is not None and not accounts.stale_use(again)


def test_a_limit_holds_for_each_key_and_tells_what_is_left(tmp_path: Path) -> None:
    throttle = Throttle(settings(tmp_path, publish_per_hour=3, requests_per_minute=5))
    left = [throttle.check("publish", "account:1") for _ in range(3)]
    assert [one.remaining for one in left if one] == [2, 1, 0]
    with pytest.raises(TooMany) as caught:
        throttle.check("publish", "account:1")
    assert 0 < caught.value.retry_after_s <= 3600 and "3 in an hour" in str(caught.value)
    assert throttle.check("publish", "account:2") is not None
    assert throttle.check("requests", "account:1") is not None  # other kinds are counted for themselves
    first = left[0]
    assert first is not None and first.headers()["RateLimit-Policy"] == '"publish";q=3;w=3600'
    assert first.headers()["RateLimit"].startswith('"publish";r=2;t=')


def test_no_limit_where_it_is_0_but_for_failed_tokens(tmp_path: Path) -> None:
    throttle = Throttle(settings(tmp_path, publish_per_hour=0, requests_per_minute=0))
    assert all(throttle.check("publish", "a") is None and throttle.check("requests", "a") is None for _ in range(50))
    for _ in range(FAILED_PER_MINUTE):
        throttle.full("failed", "192.0.2.1")
        throttle.check("failed", "192.0.2.1")
    with pytest.raises(TooMany):
        throttle.full("failed", "192.0.2.1")


def test_addresses_are_not_kept_and_counters_are_bounded(tmp_path: Path) -> None:
    throttle = Throttle(settings(tmp_path, requests_per_minute=1000))
    for number in range(3000):
        throttle.check("requests", f"198.51.{number % 250}.{number // 250}")
    names = {throttle._name(f"2001:db8:{n:x}::1") for n in range(70_000)}
    assert len(names) <= 65_536
    assert not any("198.51" in name for name in throttle._windows.storage.events)  # type: ignore[attr-defined]


@given(st.ip_addresses(v=6))
def test_an_ipv6_network_counts_as_one(address: object) -> None:
    bits = int(address)  # type: ignore[call-overload]
    if ipaddress.IPv6Address(bits).ipv4_mapped is None:
        assert network(str(address)) == network(str(ipaddress.IPv6Address(bits ^ 0xFFFF)))
        assert network(str(address)) != network(str(ipaddress.IPv6Address(bits ^ (1 << 64))))


@given(st.text(max_size=60))
def test_any_text_has_a_counter(text: str) -> None:
    assert isinstance(network(text), str)
