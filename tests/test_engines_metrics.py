"""Prometheus text: exact names, sums over series, NaN, replicas, hostile lines."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.engines import prometheus as metrics
from flatout.engines.base import TargetError
from flatout.engines.prometheus import parse
from tests.engine_server import text_of

NAMES = frozenset({"a:running", "a:tokens_total", "a:use", "a:info"})


def test_a_real_scrape_of_vllm() -> None:
    names = frozenset({"vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:cache_config_info"})
    s = parse(text_of("vllm", "get_metrics"), names)
    assert set(s.series) == names
    assert s.total("vllm:generation_tokens_total") == 802
    assert s.total("vllm:prompt_tokens_total") == 3511
    assert s.labels("vllm:cache_config_info")[0]["kv_cache_size_tokens"] == "524288"


def test_a_real_scrape_of_sglang_sums_its_streaming_label() -> None:
    s = parse(text_of("sglang", "get_metrics"), frozenset({"sglang:generation_tokens_total"}))
    assert s.total("sglang:generation_tokens_total") == 136 + 794


def test_names_are_exact_not_prefixes() -> None:
    text = 'a:tokens_total_sum 5\na:tokens_total{x="1"} 2\na:tokens 7\nxa:tokens_total 9\n# a:tokens_total 8\n'
    assert parse(text, NAMES).total("a:tokens_total") == 2
    assert parse(text, NAMES).total("a:tokens") is None


def test_data_parallel_ranks_and_models_are_added_but_tensor_parallel_ranks_are_not() -> None:
    text = """
a:running{dp_rank="0",tp_rank="0",model="m"} 3
a:running{dp_rank="0",tp_rank="1",model="m"} 3
a:running{dp_rank="1",tp_rank="0",model="m"} 4
a:running{dp_rank="1",tp_rank="1",model="m"} 4
a:running{dp_rank="0",tp_rank="0",model="n"} 1
"""
    s = parse(text, NAMES)
    assert s.total("a:running") == 8
    assert s.mean("a:running") == 8 / 3


def test_nan_and_infinity_are_no_values() -> None:
    s = parse('a:use{i="0"} NaN\na:use{i="1"} 0.5\na:use{i="2"} +Inf\na:running NaN\n', NAMES)
    assert s.mean("a:use") == 0.5
    assert s.total("a:running") is None


def test_the_first_name_that_is_there_wins() -> None:
    s = parse("a:use 0.25\n", NAMES)
    assert s.mean("a:gone", "a:use") == 0.25
    assert s.mean("a:gone") is None


def test_absent_is_none_and_zero_is_zero() -> None:
    s = parse("a:running 0\n", NAMES)
    assert s.total("a:running") == 0.0
    assert s.total("a:tokens_total") is None


def test_timestamps_exemplars_tabs_escapes_and_exponents() -> None:
    text = (
        'a:running{m="x"} 2 1795999326000\n'
        'a:tokens_total{m="x"} 1.5e3 # {trace_id="abc"} 1.0 1520879607.789\n'
        'a:use{m="with \\"quotes\\", } and \\n"}\t0.5\n'
    )
    s = parse(text, NAMES)
    assert (s.total("a:running"), s.total("a:tokens_total"), s.mean("a:use")) == (2, 1500, 0.5)


def test_a_bad_line_costs_only_itself() -> None:
    s = parse('a:running{m="x} 2\na:tokens_total 7\na:use{} zero\n', NAMES)
    assert s.total("a:tokens_total") == 7


def test_a_sum_too_large_for_a_number_is_no_number() -> None:
    s = parse('a:use{i="0"} 1.7e308\na:use{i="1"} 1.7e308\n', NAMES)
    assert s.total("a:use") is None and s.mean("a:use") is None


@pytest.mark.parametrize("wanted", [0, 4_000])
def test_a_hundred_thousand_other_series_cost_little_and_change_nothing(wanted: int) -> None:
    other = "".join(f'a:other{{i="{i}"}} 1\na:tokens_total_bucket{{i="{i}"}} 1\n' for i in range(75_000))
    text = other + "".join(f'a:running{{i="{i}"}} 1\n' for i in range(wanted)) + other
    assert parse(text, NAMES).total("a:running") == (wanted or None)


def test_too_many_wanted_series_are_refused_before_they_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(metrics, "text_string_to_metric_families", parsed.append)
    text = "".join(f'a:running{{i="{i}"}} 1\n' for i in range(150_000))
    with pytest.raises(TargetError, match=r"over 4,000 series"):
        parse(text, NAMES)
    assert not parsed


def test_a_line_without_end_is_skipped() -> None:
    s = parse(f'a:running{{x="{"y" * 5_000_000}"}} 2\na:tokens_total 7\n', NAMES)
    assert s.total("a:running") is None and s.total("a:tokens_total") == 7


@given(st.text(max_size=300))
def test_any_text_gives_numbers_or_nothing(text: str) -> None:
    s = parse(text, NAMES)
    assert all(s.total(n) is None or math.isfinite(s.total(n) or 0.0) for n in NAMES)


_VALUE = st.one_of(
    st.floats().map(str),
    st.sampled_from(["1e308", "-1.7e308", "1e999"]),
    st.integers().map(str),
    st.sampled_from(["NaN", "+Inf", "x", ""]),
    st.text(max_size=5),
)
_LABELS = st.one_of(st.just(""), st.text(alphabet='{}",=\\ab \n', max_size=15), st.just('{dp_rank="1"}'))


@given(st.lists(st.tuples(st.sampled_from(sorted(NAMES)), _LABELS, _VALUE), max_size=6))
def test_lines_that_nearly_are_metrics(lines: list[tuple[str, str, str]]) -> None:
    s = parse("\n".join(f"{n}{labels} {v}" for n, labels, v in lines), NAMES)
    for name in NAMES:
        total, mean = s.total(name), s.mean(name)
        assert (total is None) == (mean is None)
        assert mean is None or math.isfinite(mean)


@given(st.lists(st.floats(min_value=0, max_value=1e9), min_size=1, max_size=8))
def test_the_sum_is_the_sum(values: list[float]) -> None:
    text = "".join(f'a:tokens_total{{engine="{i}"}} {v!r}\n' for i, v in enumerate(values))
    assert parse(text, NAMES).total("a:tokens_total") == math.fsum(values)
