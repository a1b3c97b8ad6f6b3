"""What people see, frozen: what commands print, pages as text, the site's answers.

`python -m tests.test_frozen` writes them anew. Only the command line and HTTP are asked, so this outlives any
rebuilding inside. The records are inputs, written once.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir
from functools import lru_cache, partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from flatout.cli import app

FROZEN = Path(__file__).parent / "fixtures" / "frozen"
RECORDS, OUTPUTS = FROZEN / "records", FROZEN / "outputs"
LIMITS = "--model ../../limits/qwen3.5-4b.json --gpu 'H200 NVL'"
PUBLISHED = "../../seed/speed-test.json"
RENEW = "if this is meant, run `python -m tests.test_frozen` and put a line in CHANGELOG.md"
ENV = {"COLUMNS": "100", "LINES": "40", "TERM": "dumb", "FORCE_COLOR": None, "NO_COLOR": "1", "FLATOUT_SITE": None}

OF_A_RECORD = {
    "show.txt": "show {}", "show.md": "show {} --md", "show.all.txt": "show {} --all", "show.json": "show {} --json",
    "report.md": "report {} --md", "report.csv": "report {} --csv", "report.json": "report {} --json",
    "lint.txt": "lint {}", "lint.md": "lint {} --md", "lint.json": "lint {} --json",
    "publish.txt": "publish {} --dry-run",
    **{f"{form}.txt": f"report {{}} --format {form}"
       for form in ("llama-bench", "bencher", "github", "localmaxxing", "localmaxxing-all")},
}  # fmt: skip
COMMANDS = {
    **{f"{r}.{name}": words.format(r) for r in ("seed", "demo", "every") for name, words in OF_A_RECORD.items()},
    "limits.seed.txt": f"limits seed {LIMITS}", "limits.seed.md": f"limits seed {LIMITS} --md",
    "limits.published.txt": f"limits {PUBLISHED} {LIMITS}", "limits.alone.txt": f"limits {LIMITS}",
    "lint.seed.limits.txt": f"lint seed {LIMITS}", "lint.published.txt": f"lint {PUBLISHED}",
    "compare.txt": "compare seed other", "compare.md": "compare seed other --md",
    "compare.json": "compare seed other --json", "compare.all.txt": "compare seed other --all",
    "compare.all.md": "compare seed other --all --md", "compare.unlike.txt": "compare seed demo every",
    "compare.gate.txt": "compare seed other --fail-if 'total_tok_s < -3%'",
    "suites.txt": "suites", "version.txt": "--version", "wrong.txt": "show absent",
    "wrong.format.txt": "report seed --format nope", "wrong.limits.txt": "limits seed",
}  # fmt: skip
PAGES = {
    "seed.page.txt": "report seed", "demo.page.txt": "report demo", "every.page.txt": "report every",
    "every.page.limits.txt": f"report every {LIMITS}",
    "compare.page.txt": "compare seed other --fail-if 'total_tok_s < -3%'",
}  # fmt: skip
API = {
    "runs": "runs", "runs.first": "runs?limit=1", "runs.model": "runs?q=qwen&c=8k", "runs.wrong": "runs?c=x",
    "run.seed": "runs/{seed}", "run.other": "runs/{other}", "run.demo": "runs/{demo}", "run.every": "runs/{every}",
    "run.absent": "runs/aaaaaaaaaaaa", "samples": "runs/{seed}/samples", "boards": "boards",
    "board.single": "boards/single:8192", "board.total": "boards/total:8192:16", "board.prefill": "boards/prefill:8192",
    "compare": "compare?r={seed}&r={other}", "compare.wrong": "compare?r={seed}&r={seed}", "me": "me",
    "moderation": "moderation/queue", "record.seed": "runs/{seed}/record",
}  # fmt: skip
SITE = {
    "list": "/", "list.found": "/?q=qwen", "run.demo": "/r/{demo}", "run.every": "/r/{every}",
    "embed": "/r/{seed}/embed", "csv": "/r/{seed}/cells.csv", "md": "/r/{seed}/table.md",
    "badge": "/r/{seed}/badge.svg", "model": "/models/qwen-qwen3.5-4b", "hardware": "/hardware/h200-nvl-141-gb",
    "engine": "/engines/sglang",
    "boards": "/boards", "board.single": "/boards/single:8192", "compare": "/compare?r={seed}&r={other}",
    "compare.none": "/compare", "about": "/about", "account": "/account", "withdraw": "/r/{seed}/withdraw",
    "report": "/r/{seed}/report", "absent": "/r/aaaaaaaaaaaa", "robots": "/robots.txt",
}  # fmt: skip


class Visible(HTMLParser):
    """A page's text: a line for each block or table row, cells joined by ` | `, links as `[text](href)`."""

    SILENT = frozenset({"script", "style", "template"})
    BLOCKS = re.compile(
        "title|body|p|div|section|article|aside|header|footer|nav|main|h[1-6]|ul|ol|li|table|caption|thead|tbody|dl|dt|dd"
        "|details|summary|pre|figure|figcaption|form|fieldset|legend|label|button|select|option|svg|hr|br|blockquote"
    )

    def __init__(self, page: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.text, self.silent, self.row, self.links = "", 0, 0, [""]
        self.feed(page)
        self.close()
        self._end_line()

    def _end_line(self) -> None:
        if line := " ".join(self.text.split()):
            self.lines.append(line)
        self.text = ""

    def _block(self, tag: str) -> None:
        block = self.BLOCKS.fullmatch(tag)
        if tag == "tr" or (block and not self.row):
            self._end_line()
        elif block or tag in ("text", "tspan"):
            self.text += " "

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.silent += tag in self.SILENT
        self._block(tag)
        if tag == "tr":
            self.row += 1
        elif tag in ("td", "th") and self.text.strip():
            self.text += " | "
        elif tag == "a":
            self.links.append(re.sub(r"^(data:[^,]*),.*", r"\1,…", dict(attrs).get("href") or "", flags=re.S))
            self.text += "["

    def handle_endtag(self, tag: str) -> None:
        self.silent -= tag in self.SILENT
        self._block(tag)
        self.row -= tag == "tr"
        if tag == "a":
            self.text += f"]({self.links.pop()})"

    def handle_data(self, data: str) -> None:
        self.text += "" if self.silent else data


def visible(page: str) -> str:
    return "\n".join(Visible(page).lines) + "\n"


def command(words: str) -> str:
    """What a command prints, on both streams, and how it ends."""
    with chdir(RECORDS):
        done = CliRunner().invoke(app, shlex.split(words), env=ENV)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return f"$ flatout {words}\n{done.output.rstrip()}\n[exit code {done.exit_code}]\n"


def written(words: str, read: Callable[[Path], str]) -> str:
    """The file that a command writes, as text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made"
        ended = command(f"{words} -o {path}").splitlines()[-1]
        return f"$ flatout {words} -o FILE\n{ended}\n{read(path)}"


def parquet(path: Path) -> str:
    pq = pytest.importorskip("pyarrow.parquet")
    table = pq.read_table(path)
    rows = [json.dumps(row, ensure_ascii=False) for row in table.slice(0, 8).to_pylist()]
    return "\n".join([*(f"{c.name}: {c.type}" for c in table.schema), f"{table.num_rows} rows", *rows]) + "\n"


def options() -> str:
    """The names of all commands' options, as their help tells them."""

    def below(found: Any, name: str) -> Iterator[str]:
        ask = "--help-all" if name == "run" else "--help"
        text = CliRunner().invoke(app, [*name.split(), ask], env={**ENV, "COLUMNS": "300"}).output
        heads = re.findall(r"(?m)^(?:│ | )[ *]{0,3}((?:-{1,2}[\w-]+[ ,/]*)+)", text)
        names = sorted(set(re.findall(r"--[\w-]+", " ".join(heads))))
        yield f"{name or 'flatout'}: {' '.join(names)}".rstrip()
        for inner, one in sorted(getattr(found, "commands", {}).items()):
            yield from below(one, f"{name} {inner}".strip())

    return "\n".join(below(typer.main.get_command(app), "")) + "\n"


@lru_cache(maxsize=1)
def site() -> dict[str, str]:
    """Everything that is asked of a site with the four records on it."""
    from tests.site_client import opened

    with tempfile.TemporaryDirectory() as folder:
        made = opened(Path(folder))
        with made.http as http:
            found, ids = {}, {}
            for name, who in (("seed", "ann"), ("other", "bob"), ("demo", "ann"), ("every", "bob")):
                told = made.publish((RECORDS / name / "record.json").read_bytes(), made.token(who))
                assert told.status_code == 201, told.text
                ids[name] = told.json()["id"]
                found[f"api.publish.{name}.json"] = told
            get = partial(http.get, headers={"Accept": "text/html"}, follow_redirects=False)
            found |= {f"api.{name}.json": http.get(f"/api/v1/{path.format(**ids)}") for name, path in API.items()}
            found |= {f"site.{name}.txt": get(path.format(**ids)) for name, path in SITE.items()}
            spec = http.get("/api/v1/openapi.json").json()
    texts = {name: _steady(_answer(name, answer), ids) for name, answer in found.items()}
    paths = [f"{verb.upper()} {path}" for path, verbs in spec["paths"].items() for verb in verbs]
    parts = spec["components"]["schemas"].items()
    fields = [f"{name}: {' '.join(sorted(one.get('properties', {})))}" for name, one in parts]
    texts["api.openapi.txt"] = "\n".join([*sorted(paths), "", *sorted(fields)]) + "\n"
    return texts


def _answer(name: str, answer: Any) -> str:
    kind = answer.headers.get("content-type", "")
    head = f"{answer.status_code} {kind}\n"
    if name == "api.record.seed.json":
        same = json.loads((RECORDS / "seed" / "record.json").read_bytes()) == answer.json()
        return f"{head}{'equal to' if same else 'other than'} the record that was published\n"
    if "json" in kind:
        return head + json.dumps(answer.json(), indent=1, ensure_ascii=False) + "\n"
    return head + (visible(answer.text) if "html" in kind or "svg" in kind else answer.text)


def _steady(text: str, ids: dict[str, str]) -> str:
    """Without what differs each time: the runs' ids, when the site got them, cursors."""
    for name, run in ids.items():
        text = text.replace(run, f"<{name}>")
    text = re.sub(r'("received": )"[^"]*"', r'\1"<time>"', text)
    text = re.sub(r'("next": )"[^"]*"', r'\1"<cursor>"', text)
    return re.sub(r"(Published by \w+ on )[^;]*;", r"\1<time>;", text)


MADE: dict[str, Callable[[], str]] = {
    **{name: partial(command, words) for name, words in COMMANDS.items()},
    **{name: partial(written, words, lambda path: visible(path.read_text("utf-8"))) for name, words in PAGES.items()},
    **{f"{r}.parquet.txt": partial(written, f"report {r} --parquet", parquet) for r in ("seed", "demo", "every")},
    "options.txt": options,
    **{name: lambda name=name: site()[name] for name in (  # type: ignore[misc]
        *(f"api.publish.{r}.json" for r in ("seed", "other", "demo", "every")), *(f"api.{name}.json" for name in API),
        *(f"site.{name}.txt" for name in SITE), "api.openapi.txt")},
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_what_people_see_is_as_it_was(name: str) -> None:
    path = OUTPUTS / name
    before, now = path.read_text("utf-8") if path.exists() else "", MADE[name]()
    if before != now:
        lines = difflib.unified_diff(before.split("\n"), now.split("\n"), f"frozen/{name}", f"now/{name}", lineterm="")
        pytest.fail("\n".join([*list(lines)[:400], "", RENEW]), pytrace=False)


def test_nothing_else_is_frozen() -> None:
    assert {path.name for path in OUTPUTS.iterdir()} == set(MADE), RENEW


if __name__ == "__main__":
    OUTPUTS.mkdir(exist_ok=True)
    for old in OUTPUTS.iterdir():
        old.unlink()
    for each, make in MADE.items():
        (OUTPUTS / each).write_text(make(), "utf-8")
    print(f"{len(MADE)} outputs in {OUTPUTS}", file=sys.stderr)
