"""Prometheus text: exact names, sums over series, NaN, replicas, hostile lines."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from flatout.target.metrics import parse
from tests.target_server import text_of

NAMES = frozenset({"a:running", "a:tokens_total", "a:use", "a:info"})


def test_a_real_scrape_of_vllm() -> None:
    names = frozenset({"vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:cache_config_info"})
    s = parse(text_of("vllm", "get_metrics"), names)
    assert set(s.series) == names
    assert s.skipped == 0
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
    assert s.skipped == 2


@given(st.text(max_size=300))
def test_any_text_gives_numbers_or_nothing(text: str) -> None:
    s = parse(text, NAMES)
    assert all(s.total(n) is None or math.isfinite(s.total(n) or 0.0) for n in NAMES)


_VALUE = st.one_of(
    st.floats().map(str), st.integers().map(str), st.sampled_from(["NaN", "+Inf", "x", ""]), st.text(max_size=5)
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
