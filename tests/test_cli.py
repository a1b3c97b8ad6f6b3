"""The command line: what its help shows, what commands write and return, and what they say of wrong use."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from flatout.cli import app
from flatout.plan import Limits, plan
from flatout.record import dump
from flatout.show import document, planned
from flatout.suite import RUN_OPTIONS, SUITES
from tests import records

FIXTURES = Path(__file__).parent / "fixtures"
SEED = FIXTURES / "seed" / "speed-test.json"
MODEL = FIXTURES / "limits" / "qwen3.5-4b.json"
GPU = ("--model", MODEL, "--gpu", "H200 NVL")


def flatout(*words: object, **env: str) -> Result:
    """Runs in this process; what is no end of its own is a failure of the test."""
    done = CliRunner().invoke(app, [str(word) for word in words], env={"TERM": "dumb", "COLUMNS": "80", **env})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """A result directory, and beside it what wrong use is tried on."""
    directory = tmp_path / "result"
    directory.mkdir()
    (directory / "record.json").write_text(dump(records.seed_page()))
    (tmp_path / "bad.json").write_text('{"format": "flatout-record/1", "id": NaN}')
    for name, text in FILES.items():
        (tmp_path / f"{name}.toml").write_text(text)
    return directory


FILES = {
    "typo": "steady_time = 3", "unknown": "zzz = 1", "seconds": 'idle_timeout = "60"', "negative": "total_timeout = -1",
    "count": "load_processes = 1.5", "flag": 'drain = "no"', "tokens": 'kv_tokens = "many"', "cores": "load_cores = 1",
    "body": "extra_body = 3", "day": "extra_body = {day = 2026-12-01}", "seed": "seed = true", "text": "engine = 3",
    "heat": "temperature = -1", "key": 'api_key = "x"', "own": "extra_body = {stream = false}",
    "file": 'corpus = "gone"', "word": 'api = "smoke"', "empty": "decode = []\nprefill = []", "toml": "x =",
}  # fmt: skip
WRONG_USE = [
    ("run", "name the server's URL"),
    ("run ''", "names no host"),
    ("run ftp://x", "ftp"),
    ("run http://", "names no host"),
    ("run http://[::1", "http://[::1"),
    ("run ::", "names no host"),
    ("run http://host:notaport", "is no number"),
    ("run http://x --api smoke", "--api smoke: it is auto, chat or completions"),
    ("run http://x --suite nope", "there are demo, quick, standard, full"),
    ("run http://x --suite nope.toml", "cannot read the suite nope.toml"),
    ("run http://x --contexts 8q", "'8q' is no context length"),
    ("run http://x --concurrency 0", "'0' is no number of simultaneous requests"),
    ("run http://x --concurrency 2 --requests 4", "--concurrency does not go with it"),
    ("run http://x --extra-body {", "--extra-body is not JSON"),
    ("run http://x --extra-body []", "--extra-body takes a JSON object"),
    ("run http://x --extra-body '{\"n\": 2}'", "n > 1 makes one request several answers"),
    ("run http://x --header nocolon", "--header takes 'Name: value'"),
    ("run http://x --header 'a b: c'", "'a b' is no name of a header"),
    ("run http://x --ca /absent", "--ca /absent: there is no such file"),
    ("run http://x --hardware nonsense", "hardware"),
    ("run http://x --precision 900%", "no precision"),
    ("run http://x --prompts mine", "--prompts mine: it is own or shared"),
    ("run http://x --time 5 --precision 1%", "--time fixes the window"),
    ("run http://x --suite quick --max-time 9", "--max-time needs --precision"),
    ("run http://x --model-len max", "take a number of tokens"),
    ("run http://x --load-cores 9999", "this process may use"),
    ("run http://x --load-cores one", "--load-cores takes numbers"),
    ("run http://x --api-key a --api-key-file b", "give either"),
    ("run http://x --api-key-file /absent", "--api-key-file /absent: cannot be read"),
    ("run http://x --dry-run --json", "has no --json"),
    ("run --launch 'vllm serve m' --dry-run", "asks a running server"),
    ("run http://x --suite {typo}", "typo.toml: a suite has no entry 'steady_time'; do you mean steady_timeout?"),
    ("run http://x --suite {unknown}", "no entry 'zzz'; it has base, name, contexts, prefill"),
    ("run http://x --suite {seconds}", "seconds.toml: idle_timeout = '60': write a number above 0"),
    ("run http://x --suite {negative}", "total_timeout = -1: write a number above 0"),
    ("run http://x --suite {count}", "load_processes = 1.5: write a whole number above 0"),
    ("run http://x --suite {flag}", "drain = 'no': write true or false"),
    ("run http://x --suite {tokens}", "'many' is no context length"),
    ("run http://x --suite {cores}", "load_cores = 1: write a list of cores"),
    ("run http://x --suite {body}", "extra_body = 3: write a table"),
    ("run http://x --suite {day}", "write a table that JSON can hold"),
    ("run http://x --suite {seed}", "seed = True: write a whole number"),
    ("run http://x --suite {text}", "engine = 3: write a text"),
    ("run http://x --suite {heat}", "temperature = -1: write a number above 0"),
    ("run http://x --suite {key}", "no entry 'api_key'"),
    ("run http://x --suite {own}", "'stream' is flatout's own to set"),
    ("run http://x --suite {file}", "gone: there is no such file"),
    ("run http://x --suite {word}", "it is auto, chat or completions"),
    ("run http://x --suite {empty}", "no contexts"),
    ("run http://x --suite {toml}", "is not TOML"),
    ("demo --suite {typo}", "do you mean steady_timeout?"),
    ("report {result} --format nope", "--format nope: it is one of"),
    ("report {result} --csv --md", "one form at a time: --md or --csv"),
    ("report {result} --model /absent", "absent"),
    ("compare {result} {result} --fail-if 'total_tok_s ?? 3'", "--fail-if"),
    ("limits {result}", "give --model"),
    ("limits --model {model} --gpu 'no such card'", "no such card"),
    ("calibrate --rig-cores x", "--rig-cores takes numbers"),
    ("show {bad}", "cut off"),
    ("report {bad}", "cut off"),
    ("compare {bad} {bad}", "cut off"),
    ("lint {bad}", "cut off"),
    ("limits {bad} --model {model} --gpu H200", "cut off"),
    ("show /absent", "/absent"),
    ("report /absent", "/absent"),
    ("compare /absent x", "/absent"),
    ("lint /absent", "/absent"),
    ("limits /absent --model {model} --gpu H200", "/absent"),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "sentence"), WRONG_USE, ids=[typed for typed, _ in WRONG_USE])
def test_wrong_use_is_exit_code_2_and_one_sentence(result: Path, typed: str, sentence: str) -> None:
    places = {name: result.parent / f"{name}.toml" for name in FILES} | {
        "result": result,
        "bad": result.parent / "bad.json",
        "model": MODEL,
    }
    words = [re.sub(r"^\{(\w+)\}$", lambda found: str(places[found[1]]), word) for word in shlex.split(typed)]
    done = flatout(*words)
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("flatout: ") and done.stderr.count("\n") == 1 and sentence in done.stderr


# --- help -----------------------------------------------------------------------------------------------------------


def parameters() -> dict[str, Any]:
    """The options of `flatout run` by name, with dashes as underscores."""
    command: Any = typer.main.get_command(app)
    options = (one for one in command.commands["run"].params if one.param_type_name == "option")
    return {one.opts[0].removeprefix("--").replace("-", "_"): one for one in options}


def test_help_has_what_people_need_and_help_all_has_everything() -> None:
    shown, everything = (
        (re.findall(r"(?m)^│ (--[\w-]+)", flatout("run", ask).output)) for ask in ("--help", "--help-all")
    )
    assert len(shown) <= 25 and {"--contexts", "--launch", "--dry-run", "--help-all"} <= set(shown)
    assert {name.replace("_", "-").join(("--", "")) for name in parameters()} <= set(everything)
    assert flatout("run", "--help-all", COLUMNS="120").output.count("--idle-timeout") == 1


def test_what_stands_under_help_all_may_stand_in_a_suite() -> None:
    """But for what belongs to the connection, and what a suite has its own entries for."""
    hidden = {name for name, one in parameters().items() if one.hidden}
    assert hidden - RUN_OPTIONS.keys() == {"api_key", "ca", "insecure", "max_time", "skip_queued"}
    assert RUN_OPTIONS.keys() <= parameters().keys()


def test_a_suites_options_are_used_and_what_is_typed_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text("text")
    (tmp_path / "mine.toml").write_text(
        'base = "quick"\nidle_timeout = 7\nsteady_timeout = 8\nseed = 9\ndrain = false\nkv_tokens = "8k"\n'
        'model_len = 4096\ncorpus = "text.txt"\nextra_body = {top_p = 0.5}\nload_cores = [0]\nrequests = 2\n'
    )
    used: list[Any] = []

    def measure(options: Any, **_: Any) -> int:
        used.append(options)
        return 0

    monkeypatch.setattr("flatout.cli.run._measure", measure)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    done = flatout(
        "run", "http://x", "--suite", tmp_path / "mine.toml", "--seed", 0, "--drain", "--steady-timeout", 300
    )
    assert done.exit_code == 0, done.output
    (options,) = used
    assert (options.timeouts.idle_s, options.steady_s, options.seed, options.drain) == (7.0, 300.0, 0, True)
    assert (options.kv_tokens, options.model_length, options.requests) == (8192, 4096, 2)
    assert options.corpus == tmp_path / "text.txt" and options.load_cores == (0,)
    assert json.loads(options.extra_body) == {"top_p": 0.5} and options.suite.label == "mine/1"


# --- the dry run ----------------------------------------------------------------------------------------------------


def test_a_dry_run_is_one_matrix_of_eighty_columns() -> None:
    limits = Limits(model_length=100_000, kv_tokens=1_068_800, max_running=48)
    cells = plan(SUITES["full"], limits, max_concurrency=64)
    shown = document.text(planned.document(cells, limits, SUITES["full"], engine="vllm", model="m", budget=1), 80)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80 and sum(line.startswith("context") for line in lines) == 1
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines if re.match(r" +\d+K? ", line)}
    assert rows["8K"] == "8,193 12K 24K 48K 96K 192K 384K 768K q 1.50M c"
    assert rows["128K"].startswith("128K l 132K l")
    assert [line[:17].strip() for line in lines if re.match(r"[qcln] ", line)] == [
        "q queued", "c over capacity", "l over length",
    ]  # fmt: skip
    assert "--max-tokens-total 1 does not reach for that" in shown


# --- what commands write --------------------------------------------------------------------------------------------


def test_a_report_is_a_page_beside_the_record_with_the_hardwares_limit(result: Path) -> None:
    done = flatout("report", result, *GPU)
    assert done.exit_code == 0, done.output
    page = result / "page.html"
    assert done.stdout.strip() == str(page) and page.read_text().startswith("<!doctype html>")
    assert "limit" in page.read_text()


@pytest.mark.parametrize(
    ("form", "begins"),
    [("--png", b"\x89PNG"), ("--card", b"\x89PNG"), ("--parquet", b"PAR1"), ("--csv", b"run,"), ("", b"<!doctype")],
)
def test_a_dash_is_the_standard_output(result: Path, monkeypatch: pytest.MonkeyPatch, form: str, begins: bytes) -> None:
    monkeypatch.chdir(result)
    done = flatout("report", result, *form.split(), "-o", "-")
    assert done.exit_code == 0 and done.stdout_bytes.startswith(begins), done.stdout_bytes[:40]
    assert [path.name for path in result.iterdir()] == ["record.json"]
    assert flatout("report", result, *form.split(), "-o", result / "x").stdout.strip() == str(result / "x")
    assert (result / "x").read_bytes().startswith(begins)


def test_tables_and_exports_go_to_the_terminal(result: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(flatout("report", result, "--csv").stdout)))
    assert len(rows) == 55
    assert len(json.loads(flatout("report", result, "--json").stdout)) == 55
    assert flatout("report", result, "--md").stdout.count("|") > 100
    for name in ("llama-bench", "bencher", "github", "localmaxxing", "localmaxxing-all"):
        done = flatout("report", result, "--format", name)
        assert done.exit_code == 0 and len(done.stdout) > 100, (name, done.output)


def test_compare_its_page_and_its_gate(result: Path, tmp_path: Path) -> None:
    slower = records.seed_page()
    for cell in slower.cells:
        if cell.decode is not None and cell.decode.total_tok_s.value is not None:
            rate = cell.decode.total_tok_s
            for part in ("value", "low", "high"):
                value = getattr(rate, part)
                setattr(rate, part, value * 0.9 if value is not None else None)
    (tmp_path / "slower.json").write_text(dump(slower))
    pair = (result, tmp_path / "slower.json")
    plain = flatout("compare", *pair)
    assert plain.exit_code == 0 and "slower" in plain.stdout
    same = flatout("compare", result, result, "--fail-if", "total_tok_s < -3%")
    assert same.exit_code == 0, same.output
    assert flatout("compare", *pair, "--fail-if", "total_tok_s < -3%", "--md").exit_code == 1
    assert json.loads(flatout("compare", *pair, "--json").stdout)
    assert flatout("compare", *pair, "-o", "-").stdout.startswith("<!doctype html>")


def test_lint_finds_what_is_wrong_with_the_seeds_page() -> None:
    done = flatout("lint", SEED)
    assert done.exit_code == 1
    contaminated = done.stdout.split("Completed requests")[0]
    assert contaminated.count("were asked for") == 11
    assert "128K × 2" in done.stdout and "266,240" in done.stdout
    assert json.loads(flatout("lint", SEED, "--json").stdout)


def test_limits_of_the_seeds_page_and_beforehand() -> None:
    done = flatout("limits", SEED, "--model", MODEL)
    assert done.exit_code == 0 and "251K" in done.stdout and "%" in done.stdout, done.output
    before = flatout("limits", "--model", MODEL, "--gpu", "H200", "--contexts", "8k", "--concurrency", "1,8")
    assert before.exit_code == 0 and "8K" in before.stdout, before.output
