from __future__ import annotations

import re

import pytest

from flatout.flags import DOUBTFUL_FLAGS, MEASURED, SENTENCES, Flag, Status, sentence

DESIGN_STATUSES = "valid requests_queued doubtful no_steady_state over_capacity over_length not_run failed"
DESIGN_FLAGS = (
    "contaminated underfilled cache_warm cache_cold cold_unverified early_stop low_samples client_limited throttled "
    "drifting preempted tokens_estimated counters_disagree looping"
)


def test_words_are_those_of_the_design() -> None:
    assert [s.value for s in Status] == DESIGN_STATUSES.split()
    assert [f.value for f in Flag] == DESIGN_FLAGS.split()


@pytest.mark.parametrize("word", [*Status, *Flag])
def test_every_word_has_one_sentence(word: Status | Flag) -> None:
    text = sentence(word)
    assert text.endswith(".") and not re.search(r"\.\s", text)
    assert 40 < len(text) < 260


def test_sentences_are_distinct_and_for_words_only() -> None:
    assert len(set(SENTENCES.values())) == len(SENTENCES) == len(Status) + len(Flag)


def test_doubtful_flags_and_measured_statuses() -> None:
    assert {f.value for f in DOUBTFUL_FLAGS} == {
        "contaminated",
        "client_limited",
        "cache_warm",
        "counters_disagree",
        "looping",
    }
    assert {s.value for s in MEASURED} == {"valid", "requests_queued", "doubtful"}
