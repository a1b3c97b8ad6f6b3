"""Whatever comes in is Refused with a place, or a record that can be kept: nothing else, and soon."""

from __future__ import annotations

import contextlib
import copy
import gzip
import hashlib
import io
import json
import struct
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from flatout.compare import launch_options
from flatout.engines.redact import Redactor
from flatout.load.samples import ARRIVAL_COLUMNS, DTYPES, REQUEST_COLUMNS, Samples, from_rows
from flatout.record import Record, dump
from flatout.site import index, intake, rescan, samples, schema
from flatout.site.errors import Refused
from flatout.site.intake import Taken, public_id_of, take, take_samples
from flatout.site.samples import pack
from flatout.site.settings import Settings
from flatout.site.store import Store
from tests import records, site_records
from tests.site_database import Database, new_url

SETTINGS = site_records.settings(Path("/nowhere"))
QUICK = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


def refused(body: bytes, *, gzipped: bool = False, given: Settings = SETTINGS) -> Refused:
    begun = time.monotonic()
    with pytest.raises(Refused) as told:
        take(body, gzipped=gzipped, settings=given)
    assert time.monotonic() - begun < 30
    assert told.value.place and told.value.text and str(told.value).isprintable() and len(str(told.value)) < 1500
    return told.value


def taken(content: dict[str, Any]) -> Taken:
    return take(json.dumps(content).encode(), gzipped=False, settings=SETTINGS)


# --- real ones ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [records.seed_page, records.every_kind, lambda: records.record([])])
def test_real_records_are_taken_without_a_false_alarm(make: Callable[[], Record]) -> None:
    record = make()
    made = take(gzip.compress(dump(record).encode()), gzipped=True, settings=SETTINGS)
    assert made.record == record and rescan.leaks(json.loads(dump(record))) == []
    assert made.content_hash == hashlib.sha256(made.canonical).hexdigest() and made.public_id == made.public_id.lower()
    assert len(made.public_id) == 12 and made.public_id == public_id_of(made.content_hash)
    assert take(made.canonical, gzipped=False, settings=SETTINGS).canonical == made.canonical


def test_canonical_is_what_everybody_can_make_again() -> None:
    content = site_records.content(1)
    content["note"] = "Größe ☃ \u0000 \x7f"
    again = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert taken(content).canonical == again
    assert taken(dict(reversed(content.items()))).canonical == again


def test_what_servers_really_say_is_no_leak() -> None:
    """Words of records as flatout writes them: after redaction nothing is left to find, and harmless words stay."""
    content = site_records.content(1)
    engine, facts_ = content["engine"], content["hardware"]["facts"]
    for command in (
        "vllm serve Qwen/Qwen3.5-4B --host 0.0.0.0 --port 8000 --api-key <redacted> --max-num-seqs 64",
        "HF_TOKEN=<redacted> python -m sglang.launch_server --model-path $HOME/m/x --dist-init-addr <address>:5000",
        "llama-server -m $HOME/m/Qwen3.5-4B-Q4_K_M.gguf -c 262144 -np 8 --spec-type none -ctk q8_0",
        "docker run --gpus all -v $HOME/.cache:/root/.cache -e HF_TOKEN=$HF_TOKEN vllm/vllm-openai:v0.12.0 --model x",
    ):
        engine["launch_command"]["value"] = Redactor((), "", "", ()).command(command)
        assert rescan.leaks(content) == []
    facts_["driver"] = {"value": "570.133.20.1", "source": "host", "reason": None}
    facts_["cuda_version"] = {"value": "12.8.93.0", "source": "host", "reason": None}
    engine["version"]["value"] = "0.5.6.post3.dev9269+g834400705"
    content["protocol"]["url"] = "http://127.0.0.1:8000/v1"
    content["cells"][0]["error"] = "HTTP 500: max_tokens is too large: 4096; prompt_tokens=8192"
    content["client"]["command"] = ["flatout", "run", "http://[::1]:30000", "--header", "Authorization: <redacted>"]
    assert rescan.leaks(content) == [] and taken(content).public_id


# --- secrets and personal details -----------------------------------------------------------------------------------

KEY = "sk-proj-4f9aQ7LmZ2xW8vT1"
LEAKS = [
    ("engine.launch_command.value", f"vllm serve m --api-key {KEY} --port 8000"),
    ("engine.launch_command.value", "HF_TOKEN=hf_abcdefghijklmnopqrstuvwx vllm serve m"),
    ("engine.launch_command.value", "vllm serve /home/marie/models/x"),
    ("engine.launch_command.value", "sglang serve --dist-init-addr 10.1.2.3:5000"),
    ("protocol.url", "http://192.168.17.4:8000/v1"),
    ("protocol.url", "http://marie:geheim@localhost:8000/v1"),
    ("protocol.url", "http://workstation7:8000/v1"),
    ("note", "ask marie.curie@example.org for the model"),
    ("cells.3.error", f'HTTP 401: {{"error": "wrong key {KEY}"}}'),
    ("client.command.4", f"Authorization: Bearer {KEY}"),
    ("hardware.facts.serial.value", "GPU-5f0c1a2b-1111-2222-3333-444455556666"),
    ("model.served_as.value", "/Users/marie/models/x.gguf"),
    ("warnings.0", "cannot reach fe80::1ff:fe23:4567:890a%eth0"),
    ("engine.version.value", "192.168.17.4"),
    ("engine.build.value", "built on 172.20.0.3"),
    ("model.revision.value", "169.254.7.9"),
    ("plan.options.extra_body.api_key", KEY),
    ("plan.options.extra_body.password", 12345678),
    ("protocol.sampling.headers", [{"name": "x-api-key", "value": "abcdef0123456789"}]),
    (f"protocol.sampling.{KEY}", 1),
]


def plant(content: dict[str, Any], place: str, value: Any) -> None:
    """Puts a value at a place, making what is missing on the way."""
    content["client"]["command"] = ["flatout", "run", "http://localhost:8000", "--header", "x"]
    content["warnings"] = ["none"]
    content["hardware"]["facts"]["serial"] = {"value": "x", "source": "host", "reason": None}
    at: Any = content
    *path, last = place.split(".")
    for part in path:
        at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
    at[int(last) if isinstance(at, list) else last] = value


@pytest.mark.parametrize(
    "version",
    ["570.133.20.1", "12.8.93.0", "10.0.1.6", "9.1.0.70", "0.5.6.1", "31.0.101.5186", "192.168.1.2.3", "v1.2.3.4",
     "192.168.300.4", "2024.192.168.1", "1.192.168.1.1"],
)  # fmt: skip
def test_a_true_version_is_no_address(version: str) -> None:
    content = site_records.content(1)
    for name in ("version", "build"):
        content["engine"][name] = {"value": version, "source": "engine", "reason": None}
    assert rescan.leaks(content) == []


@pytest.mark.parametrize(("place", "value"), LEAKS)
def test_a_leak_is_refused_with_its_place_and_never_shown(place: str, value: Any) -> None:
    content = site_records.content(1)
    plant(content, place, value)
    told = refused(json.dumps(content).encode())
    shown = place.replace(KEY, "<redacted>") if KEY in place else place
    assert told.place == shown or told.place.startswith(f"{shown}."), told.place
    secrets = (KEY, "hf_abcdefghij", "geheim", "marie", "10.1.2.3", "192.168", "5f0c1a2b", "workstation7", "abcdef01")
    assert not [secret for secret in secrets if secret in str(told)]


def test_all_leaks_are_named_up_to_a_limit() -> None:
    content = site_records.content(1)
    content["warnings"] = [f"mail {number}@example.org" for number in range(100)]
    found = rescan.leaks(content)
    assert [leak.place for leak in found] == [f"warnings.{n}" for n in range(rescan.MOST_LEAKS)]
    assert {leak.what for leak in found} == {"an e-mail address"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=12)
    | st.sampled_from([str(value) for _, value in LEAKS]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.text(max_size=8) | st.sampled_from(["api_key", "name", "value", "token", "driver", "command", "key"]),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


def has_fact(value: Any) -> bool:
    """Something in it would be read as a fact."""
    if isinstance(value, dict):
        return ("value" in value and value.keys() <= {"value", "source", "reason"}) or any(
            map(has_fact, value.values())
        )
    return isinstance(value, list) and any(map(has_fact, value))


@pytest.mark.parametrize(
    "content",
    [{"a": {KEY: None}}, {"a": {KEY: []}}, {"a": {KEY: True}}, {"x": {"name": "api_key", "value": ["abc"]}},
     {"x": {"key": "password", "value": {"a": 1}}}, {"x": {"name": "api_key", "value": None}}, {"AKey": []},
     {"api_key": {}}, {"api_key": [1]}, {"x": [["api_key", "abc"]]}, {"x": ["--api-key", "abc"]}, {"x": [[], [KEY]]}],
)  # fmt: skip
def test_odd_places(content: dict[str, Any]) -> None:
    assert bool(rescan.leaks(content)) == (Redactor((), "", "", ()).tree(content) != content)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.text(min_size=1, max_size=6), JSON, max_size=4))
def test_the_quick_search_finds_what_redaction_of_the_whole_would(content: dict[str, Any]) -> None:
    """And nothing where redaction changes nothing, but a private address where a version belongs; facts aside, whose
    value is named by the fact."""
    redactor = Redactor((), "", "", ())
    assume(not has_fact(content))
    found = rescan.leaks(content)
    if redactor.tree(content) != content:
        assert found
    else:
        assert all("address" in one.what for one in found)


@QUICK
@given(st.text(max_size=40))
def test_what_is_shown_of_a_sender_is_one_harmless_line(text: str) -> None:
    shown = rescan.shown(text)
    assert len(shown) <= 60 and (shown.isprintable() or not shown)


# --- limits and hostile bytes ---------------------------------------------------------------------------------------


def test_too_large_is_said_before_anything_is_read() -> None:
    small = replace(SETTINGS, max_body_bytes=1000, max_record_bytes=2000)
    assert refused(b"x" * 1001, given=small).too_large
    assert refused(gzip.compress(site_records.body(1)), gzipped=True, given=small).too_large
    assert take(site_records.body(1), gzipped=False, settings=SETTINGS).public_id


@pytest.mark.parametrize("filling", [b"\0", b'{"a":'])
def test_a_bomb_ends_at_the_limit(filling: bytes) -> None:
    """A gibibyte in two megabytes; the limit is reached after 32 MiB."""
    squeeze = zlib.compressobj(9, wbits=31)
    head = squeeze.compress(b"") + squeeze.flush(zlib.Z_FULL_FLUSH)
    piece = squeeze.compress(filling * (2**20 // len(filling))) + squeeze.flush(zlib.Z_FULL_FLUSH)
    body = head + piece * 1024
    assert len(body) < SETTINGS.max_body_bytes and refused(body, gzipped=True).too_large


@pytest.mark.parametrize(
    "filling", [b"[", b'{"a":', b"[0,", b'{"a":1},', b"[],", b'"\\ud800",', b"1e9,", b'"' + b"a" * 19_000 + b'",']
)
def test_as_much_as_is_taken_ends_soon(filling: bytes) -> None:
    wide = replace(SETTINGS, max_body_bytes=2**23)
    refused(b'{"format":"flatout-record/1","cells":[' + filling * (8_000_000 // len(filling)), given=wide)
    refused(b'{"format":"flatout-record/1","cells":[' + filling * (8_000_000 // len(filling)) + b"0]}", given=wide)


@pytest.mark.parametrize(
    "text",
    ["a=" * 9_000, ":" * 19_000, "@a.b" * 4_500, "/home/" * 3_000, "1.2.3.4 " * 2_000, "--api-key " * 1_900,
     "http://" * 2_700, "{" * 19_000, '{"a":' * 3_500, "sk-" * 6_000, "eyJ" * 6_000, "\\" * 19_000, "é́" * 9_000],
)  # fmt: skip
def test_text_that_is_slow_to_look_through_ends_soon(text: str) -> None:
    content = site_records.content(1)
    content["warnings"] = [text + str(number) for number in range(8)]
    content["engine"]["launch_command"]["value"] = text
    begun = time.monotonic()
    with contextlib.suppress(Refused):
        taken(content)
    assert time.monotonic() - begun < 60


BAD: list[tuple[str, Any, str]] = [
    ("format", "flatout-record/99", "format"),
    ("format", None, "format"),
    ("started", "yesterday", "started"),
    ("started", "9998-01-01T00:00:00+00:00", "started"),
    ("started", "0001-01-01T00:00:00+14:00", "started"),
    ("started", "1969-12-31T23:59:59+00:00", "started"),
    ("state", "running", "state"),
    ("state", "good", "state"),
    ("unheard_of", 1, "unheard_of"),
    ("cells.2.context_tokens", 2**31, "cells.2.context_tokens"),
    ("cells.2.context_tokens", -1, "cells.2.context_tokens"),
    ("cells.2.concurrency", 2**40, "cells.2.concurrency"),
    ("cells.2.concurrency", 10**30, "the record"),
    ("cells.2.id", "p/1024", "cells.2.id"),
    ("cells.2.decode", "x", "cells.2.decode"),
    ("per_user_tok_s", 1e400, "the record"),
    ("note", "x" * 20_001, "the record"),
    ("note", "half \ud800 a pair", "the record"),
    ("plan.options.deep", json.loads("[" * 60 + "]" * 60), "the record"),
    ("cells", [{}] * 2_001, "cells"),
    ("cells", 7, "cells"),
]


@pytest.mark.parametrize(("place", "value", "said"), BAD)
def test_what_no_run_can_have_is_refused_where_it_stands(place: str, value: Any, said: str) -> None:
    content = site_records.content(1)
    plant(content, place, value)
    assert refused(json.dumps(content).encode()).place.startswith(said)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff\xfe{}", b"{}", b'{"format": 1}', b'{"format":"flatout-record/1"}',
     b'{"format":"flatout-record/1","format":"flatout-record/1"}', b'{"a":NaN}', b'{"a":-Infinity}', b"1" * 5_000,
     b'{"format":"flatout-record/1","x":' + b"9" * 5_000 + b"}", "{\"a\":\u2028}".encode(), b"\xef\xbb\xbf{}"],
)  # fmt: skip
def test_what_is_no_record(body: bytes) -> None:
    refused(body)


def test_gzip_that_is_none() -> None:
    whole = gzip.compress(site_records.body(1))
    cut_or_longer = (b"", b"text", whole[:-9], whole[:100], whole + b"more", whole + whole)
    for body in (*cut_or_longer, whole[:60] + b"\0" + whole[61:]):
        refused(body, gzipped=True)


@QUICK
@given(st.binary(max_size=300), st.booleans(), st.booleans())
def test_any_bytes(body: bytes, gzipped: bool, inside: bool) -> None:
    """As they are, or truly in gzip."""
    refused(gzip.compress(body) if inside else body, gzipped=gzipped or inside)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything inside."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in inner for found in places(item, (*path, key)))]


BASE = json.loads(dump(records.every_kind()))
PLACES = [path for path in places(BASE) if path]
VALUES = JSON | st.sampled_from(
    ["", "\x00", "\ud83d", "a" * 5000, "<script>alert(1)</script>", "../../etc/passwd", "x\r\nSet-Cookie: a=b", "१२",
     "\u202egnp.exe", 0, -1, 2**31, 2**63, 2**64, 1e308, 5e-324, -0.0, True, "9999-12-31T23:59:59.999999+00:00", [], {}]
)  # fmt: skip


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> list[Store]:
    """One on each database."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("sqlite", "postgresql")}
    return [site_records.store(Database.open(new_url(kind, folder)), folder) for kind, folder in folders.items()]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3), st.booleans())
def test_a_record_changed_anywhere_is_refused_or_kept(
    kept: list[Store], changes: list[tuple[tuple[Any, ...], Any]], removed: bool
) -> None:
    """What is taken can be kept by both databases, its trust looked at and its tables read."""
    content = copy.deepcopy(BASE)
    for path, value in changes:
        at: Any = content
        try:
            for key in path[:-1]:
                at = at[key]
            if removed and isinstance(at, dict):
                at.pop(path[-1], None)
            else:
                at[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took it away
    try:
        made = taken(content)
    except Refused as told:
        assert told.place and told.text
        return
    for store in kept:
        shown = store.publish(made, account_id=None, who="x")
        row = store.row(shown.public_id)
        for column in schema.runs.columns:
            value = getattr(row, column.name)
            size = getattr(column.type, "length", None)
            assert not isinstance(value, str) or ("\x00" not in value and (size is None or len(value) <= size))
        assert store.record(shown.public_id) == made.record


# --- names and keys -------------------------------------------------------------------------------------------------


@QUICK
@given(st.text(max_size=200), st.integers(20, 120))
def test_a_key_fits_into_a_url(name: str, limit: int) -> None:
    key = index.key_of(name, limit)
    assert len(key) <= limit and key == key.lower() and bool(key) == bool(name.strip())
    assert all(char.isascii() and (char.isalnum() or char in "._+-") for char in key) and key not in (".", "..")


def test_keys_of_different_names_differ() -> None:
    assert index.key_of("Qwen/Qwen3.5-4B") == "qwen-qwen3.5-4b"
    assert index.key_of("模型一") != index.key_of("模型二") and index.key_of("a" * 150) != index.key_of("a" * 151)
    assert index.key_of(" ") == ""


def facts_of(**more: Any) -> index.RunFacts:
    return taken(site_records.content(1, **more)).facts


def test_what_makes_a_configuration() -> None:
    base = facts_of()
    run = "sglang serve --model-path /m --tp 1"
    assert facts_of(command=f"{run} --port 1").repro_key == facts_of(command=f"{run} --port 2").repro_key
    assert launch_options(f"{run} --port 1") == launch_options(run)
    for change in (
        {"model": "Other/Model"}, {"gpu": "L4"}, {"engine": "vllm"}, {"quantization": "FP8"}, {"speculation": "none"},
        {"command": run + " --mem 0.8"},
    ):  # fmt: skip
        other = facts_of(**change)
        assert other.repro_key != base.repro_key and other.history_key != base.history_key, change
    newer = facts_of(version="0.5.7")
    assert newer.repro_key != base.repro_key and newer.history_key == base.history_key
    assert facts_of(speed=2.0).repro_key == base.repro_key
    shared = site_records.content(1)
    shared["prompts"]["mode"] = "shared"
    assert taken(shared).facts.repro_key != base.repro_key


def test_what_is_not_known_stays_so() -> None:
    content = site_records.content(1)
    for place in ("engine.launch_command", "engine.speculative_method", "model.quantization", "model.dtype"):
        plant(content, place, {"value": None, "source": None, "reason": "the server does not say"})
    content["hardware"] = {"describes": "client only", "facts": {"gpu": {"value": "H200", "source": "host"}}}
    made = taken(content).facts
    assert made.hardware_key == "" and made.hardware == "hardware not known"
    assert made.precision == made.speculation == index.NOT_KNOWN
    assert json.loads(made.summary)["launch_known"] is False


def test_typed_hardware_is_the_same_hardware_and_says_so() -> None:
    content = site_records.content(1)
    content["hardware"]["describes"] = "server, as typed"
    made, base = taken(content).facts, facts_of()
    assert made.hardware_key == base.hardware_key and made.hardware == f"{base.hardware} (as typed)"


def test_points() -> None:
    k = 1024
    cells = [
        records.decode("64K", 64 * k, 1, 50.0, status="doubtful"),
        records.decode("max", 64 * k, 1, 40.0).model_copy(update={"id": "d/max/1"}),
        records.decode("1K", k, 2, 80.0, status="requests_queued"),
        records.decode("1K", k, 4, None, status="over_capacity"),
        records.decode("max", None, 8, 90.0),
        records.prefill("1K", k, 5_000.0, 200.0),
        records.burst("1K", k, 16, 2_000.0),
    ]
    made = taken(json.loads(dump(records.record(cells)))).facts
    found = {(p.phase, p.context_tokens, p.concurrency): p for p in made.points}
    assert set(found) == {("decode", 64 * k, 1), ("decode", k, 2), ("prefill", k, 1), ("burst", k, 16)}
    both = found["decode", 64 * k, 1]
    assert both.sound and both.rate_tok_s == 40.0 and both.rate_low is not None and both.rate_low < 40.0
    assert (made.cells, made.cells_measured, made.cells_sound, made.context_max) == (7, 6, 5, 64 * k)
    assert (made.single_tok_s, made.total_tok_s, made.prefill_tok_s) == (40.0, 80.0, 5_000.0)


@pytest.mark.parametrize("part", [{"low": None}, {"low": 120.0}, {"low": -1.0}, {"value": 0.0}, {"value": -5.0}])
def test_an_interval_that_does_not_hold_its_value_is_none_and_no_speed_is_no_figure(part: dict[str, Any]) -> None:
    cell = records.decode("1K", 1024, 1, 100.0)
    assert cell.decode is not None
    for name, value in part.items():
        setattr(cell.decode.total_tok_s, name, value)
    made = taken(json.loads(dump(records.record([cell])))).facts
    rate = None if "value" in part else 100.0
    assert (made.points[0].rate_tok_s, made.points[0].rate_low, made.points[0].rate_high) == (rate, None, None)
    assert made.single_tok_s == rate


# --- samples --------------------------------------------------------------------------------------------------------


def with_samples() -> Record:
    content = site_records.content(1)
    for cell in content["cells"][:2]:
        cell["samples"] = f"samples/{cell['id'].replace('/', '-')}.npz"
    return taken(content).record


RECORD = with_samples()
NAMES = [cell.samples or "" for cell in RECORD.cells[:2]]
NPZ = Samples.empty().to_bytes()


def refused_samples(body: bytes, given: Settings = SETTINGS) -> Refused:
    with pytest.raises(Refused) as told:
        take_samples(body, RECORD, given)
    assert told.value.place and KEY not in str(told.value)
    return told.value


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def meta(**told: Any) -> bytes:
    base = {"finish_names": [], "error_texts": [], "request_ids": []}
    return npz(meta=np.frombuffer(json.dumps({**base, **told}).encode(), dtype=np.uint8))


def test_samples_are_packed_anew() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in reversed(NAMES):
            archive.writestr(name, NPZ)
        archive.comment = b"hidden"
    made = take_samples(out.getvalue(), RECORD, SETTINGS)
    assert made == pack(dict.fromkeys(NAMES, NPZ)) and b"hidden" not in made
    assert take_samples(made, RECORD, SETTINGS) == made
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        assert archive.namelist() == sorted(NAMES)
        assert Samples.from_bytes(archive.read(NAMES[0])).requests == 0


@pytest.mark.parametrize(
    "name",
    ["../x.npz", "/etc/passwd", "samples/other.npz", "samples/../../x.npz", "", "samples\\x.npz", "samples/x.exe"],
)
def test_only_files_that_a_cell_names(name: str) -> None:
    refused_samples(pack({name: NPZ}))


def test_what_is_no_zip_of_samples() -> None:
    whole = pack({NAMES[0]: NPZ})
    for body in (
        b"",
        b"PK",
        b"text",
        b"\0" * 400,
        whole[:-30],
        whole[40:],
        whole.replace(b"npz", b"npy"),
        b"PK\x01\x02" * 90_000,
    ):
        refused_samples(body)
    for inside in (b"", b"text", NPZ[:-40], npz(a=np.array([1.5])), npz(a=np.array(["text"]))):
        refused_samples(pack({NAMES[0]: inside}))
    for arrays in ({"a": np.zeros((2, 2), int)}, {"../a": np.array([1])}, {f"a{n}": np.array([1]) for n in range(70)}):
        refused_samples(pack({NAMES[0]: npz(**arrays)}))
    assert refused_samples(whole, replace(SETTINGS, max_samples_bytes=100)).too_large


def test_no_object_of_python_is_ever_opened() -> None:
    out = io.BytesIO()
    np.savez(out, a=np.array([{"x": 1}], dtype=object))
    refused_samples(pack({NAMES[0]: out.getvalue()}))


def test_a_bomb_in_the_samples() -> None:
    bomb = npz(t_ns=np.zeros(2**27 // 8, dtype=np.int64))
    assert len(bomb) < 2**20
    small = replace(SETTINGS, max_samples_bytes=2**20)
    assert refused_samples(pack({NAMES[0]: bomb}), small).too_large
    outer = io.BytesIO()
    with zipfile.ZipFile(outer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(NAMES[0], b"\0" * 2**24)
    assert refused_samples(outer.getvalue(), small).too_large


def test_what_the_server_said_is_looked_through() -> None:
    ids = [f"chatcmpl-{number:032x}" for number in range(3000)]
    assert take_samples(pack({NAMES[0]: meta(request_ids=ids, error_texts=["HTTP 500"])}), RECORD, SETTINGS)
    told = refused_samples(pack({NAMES[1]: meta(error_texts=["fine"] * 350 + [f"wrong key {KEY}"])}))
    assert told.place == f"{NAMES[1]}.error_texts.350"
    refused_samples(pack({NAMES[0]: meta(request_ids=[*ids, "10.20.30.40"])}))
    refused_samples(pack({NAMES[0]: meta(texts=["what the model wrote"])}))
    refused_samples(pack({NAMES[0]: meta(error_texts="no list")}))


def raw(files: dict[str, bytes], before: bytes = b"", comment: bytes = b"") -> bytes:
    """An .npz put together by hand."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.comment = comment
    return before + out.getvalue()


def column(values: Any, kind: str = "int64", *, shape: str | None = None, behind: bytes = b"") -> bytes:
    """An array's file; `shape`: what its header claims instead."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(values, dtype=kind), version=(1, 0))
    data = out.getvalue()
    if shape is not None:
        true = str(np.shape(values)).encode()
        at = data.index(true)
        data = data[:at] + shape.encode().ljust(len(true)) + data[at + max(len(true), len(shape)) :]
    return data + behind


def real(requests: int = 40) -> Samples:
    rows: list[tuple[int, ...]] = [
        tuple((r * 31 + c) % 90 for c in range(len(REQUEST_COLUMNS))) for r in range(requests)
    ]
    arrivals: list[tuple[int, ...]] = [(n, n, 1, 4, 1) for n in range(3 * requests)]
    return from_rows(rows, arrivals, finish_names=["stop"], error_texts=["HTTP 500 ☃"], request_ids=["a"] * requests)


def test_the_columns_are_those_that_the_load_writes() -> None:
    assert {name: np.dtype(kind) for name, kind in DTYPES.items()} == {**samples.REQUESTS, **samples.ARRIVALS}
    assert set(samples.REQUESTS) == set(REQUEST_COLUMNS) and set(samples.ARRIVALS) == set(ARRIVAL_COLUMNS)


def test_what_flatout_wrote_comes_out_as_it_went_in() -> None:
    data = real().to_bytes()
    assert take_samples(pack({NAMES[0]: data}), RECORD, SETTINGS) == pack({NAMES[0]: data})


HIDDEN = b"<script>hidden</script> my-hidden-words"


@pytest.mark.parametrize(
    "inside",
    [
        raw({"send_ns.npy": column([1, 2])}, before=HIDDEN),
        raw({"send_ns.npy": column([1, 2])}, comment=HIDDEN),
        raw({"meta.npy": column(np.frombuffer(b'{"error_texts": [],' + b" " * 20_000 + b'"error_texts": []}', "u1"),
                                "uint8")}),
        raw({"meta.npy": column(np.frombuffer(b'{"error_texts": ["' + HIDDEN + b'"], "error_texts": []}', "u1"),
                                "uint8")}),
    ],
)  # fmt: skip
def test_nothing_is_kept_beside_the_arrays(inside: bytes) -> None:
    made = take_samples(pack({NAMES[0]: inside}), RECORD, SETTINGS)
    with zipfile.ZipFile(io.BytesIO(made)) as outer, zipfile.ZipFile(io.BytesIO(outer.read(NAMES[0]))) as archive:
        assert len(archive.namelist()) == 1
        kept = archive.read(archive.namelist()[0])
    assert HIDDEN not in made and b"hidden" not in kept and len(kept) < 200


@pytest.mark.parametrize(
    "files",
    [
        {"send_ns.npy": column([1, 2], behind=HIDDEN)},
        {"send_ns.npy": column([1, 2])[:-1]},
        {"send_ns.npy": column(range(999), shape="(99,)")},
        {"send_ns.npy": column(range(9_999), shape="(10**9,)")},
        {"send_ns.npy": column(range(9_999), shape="(9e99,)")},
        {"send_ns.npy": column([[1], [2]])},
        {"send_ns.npy": column([1], "uint64")},
        {"send_ns.npy": column([1], ">i8")},
        {"send_ns.npy": column([1.0], "float64")},
        {"words.npy": column([1])},
        {"send_ns": column([1])},
        {"stream.npy": column([1, 2], "int32"), "send_ns.npy": column([1])},
        {"t_ns.npy": column([1, 2]), "kind.npy": column([1], "int8")},
        {"send_ns.npy": column([1]), "meta.npy": column(np.frombuffer(b'{"request_ids": ["a", "b"]}', "u1"), "uint8")},
        {"meta.npy": column(np.frombuffer(b"{} hidden", "u1"), "uint8")},
        {"meta.npy": column(np.frombuffer(b"[" * 100_000, "u1"), "uint8")},
        {"meta.npy": column(np.frombuffer(json.dumps({"error_texts": ["x" * 20_001]}).encode(), "u1"), "uint8")},
        {"send_ns.npy": b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65_535},
    ],
)  # fmt: skip
def test_arrays_that_are_not_what_they_claim(files: dict[str, bytes]) -> None:
    refused_samples(pack({NAMES[0]: raw(files)}))


def test_no_table_is_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MOST_REQUESTS", 39)
    assert refused_samples(pack({NAMES[0]: real(40).to_bytes()})).too_large
    assert take_samples(pack({NAMES[0]: real(39).to_bytes()}), RECORD, SETTINGS)
    monkeypatch.setattr(samples, "MOST_ARRIVALS", 100)
    assert refused_samples(pack({NAMES[0]: real(39).to_bytes()})).too_large


def test_the_servers_words_of_all_files_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    told = meta(request_ids=[f"id-{number}" for number in range(300)])
    both = pack(dict.fromkeys(NAMES, told))
    assert take_samples(both, RECORD, SETTINGS)
    monkeypatch.setattr(samples, "_MOST_WORDS_BYTES", 5_000)
    assert refused_samples(both).too_large


@pytest.mark.parametrize("claimed", [0, 100, 2**31])
@pytest.mark.parametrize("inner", [False, True])
def test_a_size_that_lies_is_not_believed(claimed: int, inner: bool) -> None:
    """64 MiB behind an entry that claims another size, in the zip and in the .npz in it."""
    name = "send_ns.npy" if inner else NAMES[0]
    data = bytearray(raw({name: b"\0" * 2**26}))
    entry = data.rindex(b"PK\x01\x02")
    struct.pack_into("<I", data, entry + 16, zlib.crc32(bytes(min(claimed, 100))))
    struct.pack_into("<I", data, entry + 24, claimed)
    body = pack({NAMES[0]: bytes(data)}) if inner else bytes(data)
    tracemalloc.start()
    try:
        refused_samples(body)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def test_a_file_of_samples_is_one_cells() -> None:
    content = site_records.content(1)
    for cell in content["cells"][1:3]:
        cell["samples"] = "samples/a.npz"
    told = refused(json.dumps(content).encode())
    assert told.place == "cells.2.samples" and "same file" in told.text


@QUICK
@given(st.binary(max_size=40), st.integers(0, 10_000))
def test_damaged_samples(put: bytes, at: int) -> None:
    whole = pack({NAMES[0]: real(3).to_bytes()})
    at = at * 7 % len(whole)
    try:
        take_samples(whole[:at] + put + whole[at + len(put) :], RECORD, SETTINGS)
    except Refused as told:
        assert told.place


def test_a_large_matrix_is_taken() -> None:
    content = site_records.content(1)
    content["cells"] = [{**cell, "id": f"{cell['id']}/{number}"} for number in range(100) for cell in content["cells"]]
    body = json.dumps(content).encode()
    made = take(gzip.compress(body), gzipped=True, settings=SETTINGS)
    assert len(made.record.cells) == 1200 and len(made.facts.points) == 12 and len(body) > 1_000_000


def test_limits_are_those_of_the_words() -> None:
    assert intake.MOST_DEEP < 64  # deeper than the redactor looks would be hidden from it
