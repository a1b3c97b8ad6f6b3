"""Suites: what is typed, what a file says, and what is refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout import suite as suites
from flatout.suite import SUITES, SuiteError


def test_named_suites_are_as_the_issue_says() -> None:
    demo, quick, standard, full = (SUITES[n] for n in ("demo", "quick", "standard", "full"))
    assert (demo.decode, demo.concurrency, demo.time_s, demo.max_output) == ((256, 1024), (1, 2, 4), 3.0, 64)
    assert (quick.decode, quick.concurrency, quick.time_s, quick.max_output) == ((512, 2048), (1, 2, 4), 5.0, 128)
    assert standard.decode == (1024, 8192, 32768) and standard.concurrency == (1, 2, 4, 8, 16)
    assert standard.max_output == 512 and standard.time_s == 20.0
    assert full.prefill == (8192, 16384, 32768, 65536, 131072, "max", "full")
    assert full.decode == (8192, 16384, 32768, 65536, 131072, "max")
    assert full.concurrency == (1, 2, 4, 8, 16, 32, 64, 128) and full.max_output == 4096
    assert all(s.prompts == "own" for s in SUITES.values())
    assert standard.label == "standard/1"


@pytest.mark.parametrize(
    ("text", "tokens"), [("8k", 8192), ("8K", 8192), (" 8192 ", 8192), ("0.5k", 512), ("1m", 1048576), ("max", "max")]
)
def test_contexts_are_read(text: str, tokens: object) -> None:
    assert suites.parse_context(text) == tokens


@pytest.mark.parametrize("text", ["", "k", "-1", "0", "8kb", "eight", "1e9", "nan", "٣k8", "9" * 30])
def test_what_is_no_context_is_refused(text: str) -> None:
    with pytest.raises(SuiteError):
        suites.parse_context(text)


@given(st.text(max_size=20))
def test_parsers_answer_or_refuse_but_never_crash(text: str) -> None:
    for parse in (suites.parse_contexts, suites.parse_concurrency, suites.parse_precision):
        try:
            parse(text)
        except SuiteError as error:
            assert str(error)


def test_concurrency_lists_and_doublings() -> None:
    assert suites.parse_concurrency("1,2, 4,2") == (1, 2, 4)
    assert suites.parse_concurrency("1-16") == (1, 2, 4, 8, 16)
    assert suites.parse_concurrency("3-10") == (3, 6, 10)
    with pytest.raises(SuiteError):
        suites.parse_concurrency("8-2")


def test_a_suite_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'base = "quick"\ncontexts = [1024, "4k", "max"]\nconcurrency = [8, 1]\ntime_s = 2\nprecision = "2%"\n'
        'prompts = "shared"\n'
    )
    made = suites.load(str(path))
    assert made.label == "mine/1+shared"
    assert made.decode == (1024, 4096, "max") == made.prefill
    assert made.concurrency == (1, 8) and made.precision == 0.02
    assert made.min_time_s <= made.time_s == 2.0 and made.max_output == SUITES["quick"].max_output


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("contexs = [1]", "contexs"),
        ("contexts = 8", "contexts"),
        ("concurrency = []", "concurrency"),
        ("concurrency = [0]", "concurrency"),
        ("time_s = -1", "time_s"),
        ("time_s = true", "time_s"),
        ('base = "nope"', "nope"),
        ("decode = []\nprefill = []", "no contexts"),
        ("max_output = 1", "max_output"),
        ("x = ", "TOML"),
    ],
)
def test_a_wrong_file_names_its_entry(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(SuiteError, match=word):
        suites.load(str(path))


def test_an_unknown_suite_names_those_there_are() -> None:
    with pytest.raises(SuiteError, match="standard"):
        suites.load("nope")
    with pytest.raises(SuiteError, match="cannot read"):
        suites.load("nope.toml")


def test_labels() -> None:
    assert suites.label(8192, 8192) == "8K"
    assert suites.label(256, 256) == "256"
    assert suites.label(257024, "max") == "251K"
    assert suites.label(262080, "full") == "full"
    assert suites.label(None, "max") == "max"
