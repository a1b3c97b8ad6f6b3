"""The rig's parts that need no socket: tokenizer, request parser, prefix cache, speeds, config, log."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.rig.config import ConfigError, RigConfig, profile_from_seed
from flatout.rig.http import BadRequest, RequestParser
from flatout.rig.prompt import PrefixCache, Prompt, hash_in_slices
from flatout.rig.request import Refusal, key_of, read_ask, slices
from flatout.rig.timing import Grid, Speed, between
from flatout.rig.tokens import Ring, count, pieces, pieces_in_slices, sentence, token_id
from flatout.rig.truth import LEFTOVER, SENT, Log, Record, Truth

SEED = Path(__file__).parent / "fixtures" / "seed" / "speed-test.json"


# -- tokenizer ---------------------------------------------------------------------------------------------------------
@given(st.text())
def test_pieces_are_the_text(text: str) -> None:
    assert "".join(pieces(text)) == text
    assert all(1 <= len(piece) <= 8 for piece in pieces(text))


@given(st.text(alphabet="ab Z9_.\n\u00e9", max_size=60), st.text(alphabet="ab Z9_.\n\u00e9", max_size=60))
def test_joining_texts_may_merge_tokens_at_the_seam_only(left: str, right: str) -> None:
    apart = count(left) + count(right)
    assert apart - 2 <= count(left + right) <= apart


def test_a_seam_does_merge() -> None:
    assert (count("wor"), count("ld"), count("world")) == (1, 1, 1)


@settings(max_examples=40)
@given(st.text(alphabet="abc \u00e9\n1.", min_size=4000, max_size=9000))
def test_slices_give_the_same_tokens(text: str) -> None:
    assert [piece for part in pieces_in_slices(text) for piece in part] == pieces(text)


def test_ids_are_stable_and_text_looks_like_text() -> None:
    assert token_id(" harbor") == token_id(" harbor") != token_id("harbor")
    text = "".join(sentence(random.Random(3)) for _ in range(50))
    assert 3.5 < len(text) / count(text) < 6


@given(st.integers(0, 10_000), st.integers(1, 300), st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_an_answer_tokenises_to_the_tokens_that_were_sent(number: int, events: int, per_event: int) -> None:
    ring = RING
    start = ring.start(number)
    text = b"".join(ring.text(start + i * per_event, per_event) for i in range(events)).decode()
    assert count(json.loads(f'"{text}"')) == events * per_event


RING = Ring.of_sentences(1)


def test_the_text_does_not_repeat_and_the_phrase_does() -> None:
    text = RING.text(RING.start(5), 2000)
    assert max(text.count(text[i : i + 60]) for i in range(0, 6000, 97)) == 1
    looping = Ring.of_phrase(' say "hello" again')
    assert (
        looping.text(0, 4096).decode()
        == json.dumps("".join(looping.pieces * 4096)[: len(looping.text(0, 4096))])[1 : 1 + len(looping.text(0, 4096))]
    )


# -- HTTP --------------------------------------------------------------------------------------------------------------
BODY = json.dumps({"prompt": "h\u00e9llo", "max_tokens": 3}).encode()
WIRE = (
    b"POST /v1/completions?x=1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer sk-1\r\nContent-Length: %d\r\n\r\n%b"
    % (len(BODY), BODY)
    + b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n"
)


@given(st.lists(st.integers(1, len(WIRE) - 1), max_size=12))
def test_requests_parse_whatever_the_split(cuts: list[int]) -> None:
    parser = RequestParser()
    edges = [0, *sorted(cuts), len(WIRE)]
    found = [request for a, b in pairwise(edges) for request in parser.feed(WIRE[a:b])]
    assert [(r.method, r.path) for r in found] == [("POST", "/v1/completions"), ("GET", "/metrics")]
    assert (found[0].body, found[0].key, found[0].keep_alive) == (BODY, "sk-1", True)
    assert not found[1].keep_alive


@given(st.binary(max_size=200))
def test_garbage_never_crashes_the_parser(data: bytes) -> None:
    parser = RequestParser()
    try:
        parser.feed(data)
    except BadRequest:
        return


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["prompt", "messages", "max_tokens", "n", "content", "text"]), inner)
        ),
        max_leaves=8,
    ),
    st.sampled_from(["chat", "completions"]),
)
def test_any_json_is_read_or_refused(value: object, api: str) -> None:
    try:
        ask = read_ask(api, json.dumps(value).encode(), RigConfig())  # type: ignore[arg-type]
    except Refusal:
        return
    assert ask.prompts and ask.choices >= 1


# -- prefix cache ------------------------------------------------------------------------------------------------------
def prompt_of(words: list[str], granule: int = 16) -> Prompt:
    prompt = list(hash_in_slices([words], granule))[-1]
    assert prompt is not None
    return prompt


def cache_of(block: int, room: int | None = None, after: int = 1) -> PrefixCache:
    return PrefixCache(enabled=True, block_tokens=block, room_tokens=room, after_sends=after)


def words(n: int, head: str = "a") -> list[str]:
    return [head, *(f"w{i}" for i in range(n - 1))]


@pytest.mark.parametrize(("block", "granule", "cached"), [(1, 16, 694), (128, 128, 640), (16, 16, 688)])
def test_an_identical_prompt_is_cached_but_for_its_last_block(block: int, granule: int, cached: int) -> None:
    cache, prompt = cache_of(block), prompt_of(words(695), granule)
    assert cache.cached_tokens(prompt) == 0
    cache.insert(prompt)
    assert cache.cached_tokens(prompt) == cached


@given(st.integers(1, 400), st.integers(0, 400), st.integers(1, 200))
def test_only_a_common_head_is_cached(common: int, more: int, other: int) -> None:
    cache = cache_of(16)
    first = prompt_of(words(common) + [f"x{i}" for i in range(more)])
    cache.insert(first)
    second = prompt_of(words(common) + [f"y{i}" for i in range(other)])
    assert cache.cached_tokens(second) == min(common - common % 16, (second.tokens - 1) // 16 * 16)


def test_a_new_head_means_nothing_is_cached() -> None:
    cache = cache_of(1)
    cache.insert(prompt_of(words(500, "a")))
    assert cache.cached_tokens(prompt_of(words(500, "b"))) == 0


def test_the_room_drops_the_oldest_and_hybrids_cache_late() -> None:
    cache = cache_of(16, room=1000)
    one, two, three = (prompt_of(words(400, head)) for head in "abc")
    for prompt in (one, two, one, three):  # `one` was used after `two`
        cache.insert(prompt)
    assert cache.cached_tokens(two) == 0
    assert cache.cached_tokens(one) > 0 < cache.cached_tokens(three)
    assert cache.tokens <= 1000
    late = cache_of(16, after=2)
    late.insert(one)
    assert late.cached_tokens(one) == 0
    late.insert(one)
    assert late.cached_tokens(one) == 384
    late.clear()
    assert late.cached_tokens(one) == late.tokens == 0


def test_equal_prompts_have_equal_keys_however_cut() -> None:
    text = "one two three four five six seven " * 500
    assert prompt_of(pieces(text)).key == list(hash_in_slices(slices([text]), 16))[-1].key  # type: ignore[union-attr]
    assert key_of([text]) == key_of([text]) != key_of([text + "x"])


# -- speeds ------------------------------------------------------------------------------------------------------------
def test_tables_are_linear_between_and_flat_outside() -> None:
    rows = [(10.0, 100.0), (20.0, 200.0)]
    assert [between(rows, x) for x in (0, 10, 15, 20, 99)] == [100, 100, 150, 200, 200]
    grid = Grid([(1000, 1, 400), (1000, 4, 100), (3000, 1, 200), (3000, 4, 50)])
    assert grid.at(1000, 1) == 400
    assert grid.at(2000, 1) == 300
    assert grid.at(2000, 4) == 75
    assert grid.at(9999, 99) == 50


def test_prefill_costs_only_what_is_not_cached() -> None:
    speed = Speed(RigConfig.from_dict({"prefill_table": [[1000, 10_000], [2000, 5000]]}))
    assert speed.prefill_ns(1000, 0) == pytest.approx(100e6)
    assert speed.prefill_ns(2000, 0) == pytest.approx(400e6)
    assert speed.prefill_ns(2000, 1000) == pytest.approx(300e6)
    assert speed.prefill_ns(2000, 2000) == 0
    assert Speed(RigConfig(prefill_tok_s=1000, time_scale=0.1)).prefill_ns(500, 0) == pytest.approx(50e6)


# -- config ------------------------------------------------------------------------------------------------------------
def test_the_config_travels_as_json() -> None:
    config = RigConfig.from_dict({"dialect": "vllm", "decode_table": {"1": 100, "4": 40}, "stalls": [[1, 2]]})
    assert config.decode_table == ((0.0, 1.0, 100.0), (0.0, 4.0, 40.0))
    assert RigConfig.from_dict(json.loads(config.to_json())) == config


@pytest.mark.parametrize(
    "bad",
    [
        {"decode_toks": 1},
        {"decode_tok_s": 0},
        {"decode_tok_s": "fast"},
        {"dialect": "tgi"},
        {"pattern": "wave"},
        {"stalls": [[1]]},
        {"leftover": 3},
        {"max_running": -1},
        {"spec_accept_length": 99},
    ],
)
def test_a_wrong_knob_is_named(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        RigConfig.from_dict(bad)


def test_what_cannot_change_live_is_refused() -> None:
    with pytest.raises(ConfigError, match="dialect"):
        RigConfig().changed({"dialect": "vllm"})
    assert RigConfig().changed({"decode_tok_s": 7}).decode_tok_s == 7


def test_the_seed_page_becomes_a_profile() -> None:
    knobs = profile_from_seed(SEED)
    speed = Speed(RigConfig.from_dict(knobs))
    assert speed.stream_tok_s(8, 8, 8192) == pytest.approx(309.4)
    assert speed.stream_tok_s(4, 4, 257_024) == pytest.approx(168.7)
    assert speed.prefill_ns(8192, 0) == pytest.approx(8192 / 37_100 * 1e9)
    assert speed.fixed_ns(8192, 8191, 16) == pytest.approx(229e6)
    assert (knobs["max_running"], knobs["model_len"], knobs["model"]) == (32, 262_144, "qwen")
    # Exactly the cells that the page calls over capacity do not fit.
    for cell in json.loads(SEED.read_text())["cells"]:
        if cell["phase"] == "decode":
            fits = cell["concurrency"] * (cell["context_tokens"] + 4096) <= knobs["kv_tokens"]
            assert fits is (cell["status"] != "over_capacity"), cell


def test_the_profile_can_make_the_totals_true() -> None:
    rate = Speed(RigConfig.from_dict(profile_from_seed(SEED, rates="total"))).stream_tok_s(32, 32, 8192)
    # A closed loop of 32: each cycle is one TTFT and 4095 more tokens.
    assert 32 * 4096 / (0.651 + 4095 / rate) == pytest.approx(4657.1)


# -- the log -----------------------------------------------------------------------------------------------------------
def test_the_log_gives_back_what_was_written() -> None:
    log = Log()
    number = log.open(Record(rid="r1", arrival_ns=100, prompt_tokens=7, first_ns=1_000_100, end_ns=5_000_000))
    other = log.open(Record(rid="", arrival_ns=200, reason="refused: rate"))
    log.event(1_000_100, number, 1, 0, SENT)
    log.event(2_000_100, number, 4, 5_000, SENT)
    log.event(3_000_000, number, 3, 0, LEFTOVER)
    log.flushed[1] = 2_500_000
    for t_ns, running in ((0, 1), (1_000_000, 3), (2_000_000, 0)):
        log.level(t_ns, running, running + 1)
    truth = Truth.from_npz(log.to_npz(RigConfig().to_json(), 9))
    assert truth.rid == ["r1", ""] and truth.reason[other] == "refused: rate" and truth.taken_ns == 9
    assert truth.ttft_ms()[0] == pytest.approx(1.0) and np.isnan(truth.ttft_ms()[1])
    assert truth.tokens_between(0, 10_000_000) == 5
    assert truth.tokens_between(0, 10_000_000, leftover=True) == 8
    assert truth.tokens_between(1_000_100, 2_000_100) == 1
    assert truth.running_mean(0, 4_000_000) == pytest.approx(1.0)
    assert truth.running_mean(500_000, 1_500_000) == pytest.approx(2.0)
    assert truth.waiting_mean(0, 1_000_000) == pytest.approx(2.0)
    gaps, tokens = truth.gaps_ns()
    assert (list(gaps), list(tokens)) == ([1_000_000], [4])
    assert list(truth.itl_ms()) == [0.25] * 4
    assert truth.gaps_ns(0, 2_000_000)[0].size == 0
    assert truth.event_flushed_ns[1] == 2_500_000
    assert truth.late_ns()["max"] == 5_000
    assert truth.config["dialect"] == "openai"


def test_what_is_no_log_is_refused() -> None:
    with pytest.raises(ValueError, match="no log of a rig"):
        Truth.from_npz(b"PK\x03\x04")
