from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.measure.looping import looping, looping_share

WORDS = "the server reads a prompt and writes an answer while many users wait their"


def prose(seed: int, words: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS.split()) + str(rng.randrange(50)) * (rng.random() < 0.2) for _ in range(words))


@pytest.mark.parametrize(
    "unit", ["a", "ab", "no no yes ", "I am sorry, but I can not do that. ", prose(1, 60), "日本語の文。"]
)
def test_s8_a_repeated_unit_is_found(unit: str) -> None:
    """Fault S8: a model that repeats itself."""
    repeated = unit * (4000 // len(unit.encode()) + 1)
    assert looping(repeated) is True
    assert looping(prose(2, 150) + repeated) is True
    assert looping(repeated + prose(3, 150)) is True
    assert looping(repeated[: len(repeated) - len(unit) // 2]) is True


@given(st.text(min_size=1, max_size=40), st.integers(0, 60))
def test_s8_any_unit(unit: str, lead: int) -> None:
    text = prose(5, lead) + unit * (3000 // len(unit.encode("utf-8", "surrogatepass")) + 8)
    assert looping(text) is True


def test_prose_does_not_loop() -> None:
    assert [seed for seed in range(30) if looping(prose(seed, 800)) is not False] == []


def test_lists_tables_and_code_do_not_loop() -> None:
    numbered = "\n".join(f"{i}. Check the value of item {i} and write it down." for i in range(1, 80))
    table = "| id | name | value |\n|---|---|---|\n" + "\n".join(
        f"| {i} | row {i} | {i * 7 % 100} |" for i in range(80)
    )
    code = "\n".join(f"    if x == {i}:\n        return {i * i}" for i in range(80))
    refrain = "\n".join(prose(i, 20) + "\nAnd that is the end of the verse.\n" for i in range(12))
    for text in (numbered, table, code, refrain):
        assert looping(text) is False


def test_less_than_half_is_no_loop_and_short_text_is_not_judged() -> None:
    assert looping(prose(1, 900) + "again " * 60) is False
    assert looping("again " * 20) is None
    assert looping("") is None


def test_three_times_is_no_loop() -> None:
    assert looping(prose(1, 100) * 3) is False


def test_share_over_a_cell() -> None:
    texts = ["again " * 100, prose(1, 200), prose(2, 200), prose(3, 200), "short"]
    assert looping_share(texts) == pytest.approx(0.25)
    assert "no answer" in str(looping_share(["short", ""]))


def test_time_grows_about_with_the_length() -> None:
    """No quadratic behaviour on a text full of near repeats (bounded, not a speed test)."""
    nasty = ("a" * 5000 + "b") * 100
    begin = time.process_time()
    looping(nasty)
    assert time.process_time() - begin < 5.0
