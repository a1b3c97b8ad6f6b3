"""How fast the site answers with many runs in it: p50 and p99 of its pages, and of publishing, over HTTP.

    python benchmarks/site.py [--runs 100000] [--data DIR] [--postgresql URL]
                              [--readers 4] [--pause-ms 60] [--seconds 40] [--publish-every-s 1]

Fills the site (kept in --data, so a second time is quick), starts the real one in its own process, and asks it over
the loopback, with connections kept open as browsers do: first one reader alone, then --readers at once, each with a
pause of --pause-ms in the mean (exponential) between two requests, while one more client publishes. Runs and
comparisons that nobody saw before are 2 % of what is read. Times run from sending a request to its last byte; CPU is
that of the site and its drawing process a request, with one reader (what a page costs even where other work slows the
machine down). Prints Markdown with the machine. --postgresql: an empty database's URL.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import math
import os
import pickle
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Final
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
import sqlalchemy as sa

import site_fill
from flatout.host.machine import cpu_model
from flatout.site import accounts, schema
from flatout.site.blobs import Blobs
from flatout.site.database import Database
from flatout.site.settings import Settings
from flatout.site.store import Store

START_S: Final = 60.0
ANSWER_S: Final = 30.0
SAMPLES: Final = 240
ALONE: Final = 40
SWITCH_S: Final = 0.0002
SERVE: Final = (
    "import pickle, sys; from flatout.site.serve import start; "
    "start(pickle.loads(bytes.fromhex(sys.argv[1])), lambda text: None)"
)


@dataclass
class Page:
    """A page that is asked for. `paths`: in turn; `fresh`: each once only (what nobody has drawn yet); `weight`: how
    often under load, against the others."""

    name: str
    paths: list[str]
    fresh: bool = False
    weight: float = 1.0
    asked: int = 0
    alone_ms: list[float] = field(default_factory=list)
    cpu_ms: float | None = None
    loaded_ms: list[float] = field(default_factory=list)
    bytes: int = 0

    def next(self) -> str | None:
        if self.fresh and self.asked >= len(self.paths):
            return None
        self.asked += 1
        return self.paths[(self.asked - 1) % len(self.paths)]


def main() -> None:
    asked = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    asked.add_argument("--runs", type=int, default=100_000)
    asked.add_argument("--data", type=Path, default=Path("benchmark-site"))
    asked.add_argument("--postgresql")
    asked.add_argument("--readers", type=int, default=4)
    asked.add_argument("--pause-ms", type=float, default=60.0)
    asked.add_argument("--seconds", type=float, default=40.0)
    asked.add_argument("--publish-every-s", type=float, default=1.0)
    given = asked.parse_args()
    settings = _settings(given.data, given.postgresql)
    samples, told = _filled(settings, given.runs)
    token = _token(settings)
    shutil.rmtree(settings.data_dir / "rendered", ignore_errors=True)  # what an earlier go has drawn
    pages = _pages(settings, samples)
    with _site(settings) as process:
        port = settings.port
        _alone(port, process, pages)
        published, reads, took = _loaded(port, pages, token, given)
    print(_report(given, pages, published, reads / took, told))


def _settings(data: Path, url: str | None) -> Settings:
    folder = (data / ("postgresql" if url else "sqlite")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return Settings(
        data_dir=folder, database_url=url or f"sqlite:///{folder / 'site.sqlite3'}", files_url=str(folder / "files"),
        secret="a secret of the benchmark, 0123456789abcdef", port=port, base_url=f"http://127.0.0.1:{port}",
        publish_per_hour=0, requests_per_minute=0, comparisons_per_minute=0,
    )  # fmt: skip


def _filled(settings: Settings, count: int) -> tuple[list[str], str]:
    """(public ids of the runs with files, a word on the filling). Exits where the data is of another size."""
    database = Database.open(settings.database_url)
    database.migrate()
    note = settings.data_dir / "filled.json"
    made = Store(database, Blobs.open(settings.files_url), settings)
    with database.read() as conn:
        there = conn.scalar(sa.select(sa.func.count()).select_from(schema.runs)) or 0
    if not note.exists():
        if there:
            sys.exit(f"{settings.data_dir}: half filled, or not by this program; remove it (and empty the database)")
        print(f"filling {count:,} runs…", file=sys.stderr)
        filled = site_fill.fill(settings, made, count, min(SAMPLES, count // 2))
        rows = site_fill.check(made)
        print(
            f"filled in {filled.seconds:.0f} s; {rows:,} rows of the rankings are as publishing makes them",
            file=sys.stderr,
        )
        note.write_text(json.dumps(asdict(filled)))
    filled_with = json.loads(note.read_text())
    if filled_with["runs"] != count:
        sys.exit(
            f"{settings.data_dir} has {filled_with['runs']:,} runs: --runs {filled_with['runs']}, or another --data"
        )
    with database.read() as conn:
        size = conn.scalar(sa.text("SELECT pg_database_size(current_database())")) if not database.sqlite else (
            (settings.data_dir / "site.sqlite3").stat().st_size)  # fmt: skip
        counted = sa.select(schema.names.c.kind, sa.func.count()).group_by(schema.names.c.kind)
        names: dict[str, int] = {kind: n for kind, n in conn.execute(counted)}  # noqa: C416
        ranked = conn.scalar(sa.select(sa.func.count()).select_from(schema.standings))
    database.close()
    many = {kind: names.get(kind, 0) for kind in ("model", "hardware", "engine")}
    told = (
        f"{filled_with['runs']:,} runs, {filled_with['points']:,} cells, {filled_with['configurations']:,} "
        f"configurations, {ranked:,} rows in rankings; {many['model']} models, {many['hardware']} kinds of hardware, "
        f"{many['engine']} engines; {size / 2**20:,.0f} MiB"
    )
    return filled_with["samples"], told


def _token(settings: Settings) -> str:
    database = Database.open(settings.database_url)
    with database.write() as conn:
        _, token = accounts.add_token(conn, "benchmark", ("publish",))
    database.close()
    return token


def _pages(settings: Settings, samples: Sequence[str]) -> list[Page]:
    """What is asked for, with values of what there is: popular and rare."""
    database = Database.open(settings.database_url)
    names, s, runs = schema.names, schema.standings, schema.runs
    with database.read() as conn:

        def keys(kind: str) -> list[str]:
            found = list(conn.scalars(sa.select(names.c.key).where(names.c.kind == kind).order_by(names.c.runs.desc())))
            return [quote(key, safe="") for key in (found[:4] + found[4::7])[:12]]

        models, hardware, engines = keys("model"), keys("hardware"), keys("engine")
        histories = list(conn.scalars(
            sa.select(runs.c.history_key).where(runs.c.state == "public").group_by(runs.c.history_key)
            .order_by(sa.func.count().desc()).limit(6)))  # fmt: skip
        boards = list(
            conn.scalars(sa.select(schema.boards.c.board).order_by(schema.boards.c.configurations.desc()).limit(12))
        )
        pair = conn.execute(sa.select(s.c.model_key, s.c.hardware_key).limit(1)).one()
        newest = conn.scalars(sa.select(runs.c.started_us).order_by(runs.c.started_us.desc()).offset(1)).first() or 0
    database.close()
    last = datetime.fromtimestamp(newest / 1e6, UTC).date()
    one, other = (quote(key, safe="") for key in pair)
    fresh, known = list(samples[: len(samples) // 2]), list(samples[len(samples) // 2 :])
    pairs = [f"/compare?r={a}&r={b}" for a, b in pairwise(fresh)]
    filtered = [f"/?m={key}" for key in models] + [f"/?h={key}" for key in hardware] + [f"/?e={key}" for key in engines]
    combined = [
        f"/?m={one}&h={other}&p=BF16", f"/?m={models[-1]}&e={engines[-1]}", "/?p=FP8&s=eagle3&c=8k",
        f"/?h={hardware[-1]}&p=Q8_0", f"/?e={engines[0]}&from={last.replace(day=1)}", "/?c=128k&s=mtp&p=AWQ",
    ]  # fmt: skip
    search = [
        "/?q=qwen", "/?q=llama+h200", "/?q=granite+4090+fp8", "/?q=gemma+eagle", "/?q=nothing+there", f"/?q={known[0]}",
        "/?q=olmo+mlc+awq",
    ]  # fmt: skip
    return [
        Page("runs", ["/"], weight=3),
        Page("runs, filtered", filtered),
        Page("runs, several filters", combined),
        Page("runs, search", search),
        Page("run, nobody saw it yet", [f"/r/{key}" for key in fresh], fresh=True, weight=0.2),
        Page("run, again", [f"/r/{key}" for key in known[:20]], weight=3),
        Page("compare, nobody saw it yet", pairs, fresh=True, weight=0.1),
        Page("compare, again", [f"/compare?r={known[0]}&r={known[1]}", f"/compare?r={known[2]}&r={known[3]}"]),
        Page("model", [f"/models/{key}" for key in models]),
        Page("hardware", [f"/hardware/{key}" for key in hardware]),
        Page("engine", [f"/engines/{key}" for key in engines]),
        Page("leaderboards", ["/boards"]),
        Page("leaderboard", [f"/boards/{board}" for board in boards] + [f"/boards/{boards[0]}?m={models[0]}"]),
        Page("history", [f"/history/{key}" for key in histories]),
        Page("API: list", ["/api/v1/runs", *(f"/api/v1/runs?m={key}" for key in models)]),
        Page("API: run", [f"/api/v1/runs/{key}" for key in known[:20]]),
        Page("record.json", [f"/r/{key}/record.json" for key in known[:20]]),
    ]


@contextmanager
def _site(settings: Settings) -> Iterator[psutil.Process]:
    """The site in a process of its own; ended at the end."""
    process = subprocess.Popen([sys.executable, "-c", SERVE, pickle.dumps(settings).hex()], stdin=subprocess.DEVNULL)
    try:
        end = time.monotonic() + START_S
        while True:
            try:
                if _ask(_connection(settings.port), "/healthz")[0] == 200:
                    break
            except OSError:
                if time.monotonic() > end or process.poll() is not None:
                    sys.exit("the site did not start; its words stand above")
                time.sleep(0.1)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()


def _connection(port: int) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _ask(connection: http.client.HTTPConnection, path: str) -> tuple[int, int, float]:
    """(status, bytes, milliseconds)."""
    begun = time.perf_counter()
    connection.request("GET", path, headers={"Accept": "text/html,*/*"})
    answer = connection.getresponse()
    size = len(answer.read())
    return answer.status, size, (time.perf_counter() - begun) * 1000


def _read(connection: http.client.HTTPConnection, page: Page, times: list[float]) -> None:
    path = page.next()
    if path is None:
        return
    status, page.bytes, ms = _ask(connection, path)
    if status != 200:
        sys.exit(f"{path} answered {status}")
    times.append(ms)


def _cpu_s(process: psutil.Process) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True)))


def _alone(port: int, process: psutil.Process, pages: Sequence[Page]) -> None:
    """Each page ALONE times, nothing else going on; what is drawn once only is kept for the load, too."""
    connection = _connection(port)
    for page in pages:
        if not page.fresh:
            for _ in range(len(page.paths)):
                _read(connection, page, [])
        begun = _cpu_s(process)
        for _ in range(ALONE):
            _read(connection, page, page.alone_ms)
        page.cpu_ms = (_cpu_s(process) - begun) * 1000 / max(1, len(page.alone_ms))


def _loaded(port: int, pages: Sequence[Page], token: str, given: argparse.Namespace) -> tuple[list[float], int, float]:
    """(milliseconds of each publish, reads, seconds)."""
    ends = threading.Event()
    lock = threading.Lock()
    published: list[float] = []
    failed: list[str] = []
    # made beforehand, and threads change often: this program must not be what the readers wait for
    bodies = _bodies(int(given.seconds / given.publish_every_s) + 2)
    sys.setswitchinterval(SWITCH_S)

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # shown at the end; the others stop
                failed.append(repr(error))
                ends.set()

        return run

    def reader(seed: int) -> Callable[[], None]:
        def read() -> None:
            rng, connection = random.Random(seed), _connection(port)
            while not ends.wait(rng.expovariate(1000 / given.pause_ms)):
                (page,) = rng.choices(pages, [page.weight for page in pages])
                with lock:
                    path = page.next()
                if path is None:
                    continue
                status, _, ms = _ask(connection, path)
                if status != 200:
                    raise RuntimeError(f"{path} answered {status}")
                page.loaded_ms.append(ms)

        return read

    def publisher() -> None:
        connection = _connection(port)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Content-Encoding": "gzip"}
        for data in bodies:
            if ends.wait(given.publish_every_s):
                return
            begun = time.perf_counter()
            connection.request("POST", "/api/v1/runs", body=data, headers=headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 201:
                raise RuntimeError(f"publish answered {answer.status}: {text[:300]!r}")
            published.append((time.perf_counter() - begun) * 1000)

    threads = [threading.Thread(target=guarded(work), daemon=True) for work in
               (*(reader(i) for i in range(given.readers)), publisher)]  # fmt: skip
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    ends.wait(given.seconds)
    ends.set()
    for thread in threads:
        thread.join(timeout=ANSWER_S)
    if failed:
        sys.exit(failed[0])
    return published, sum(len(page.loaded_ms) for page in pages), time.monotonic() - begun


def _bodies(count: int) -> list[bytes]:
    """Records of runs that nobody has published, as they are sent."""
    rng, began = random.Random(), datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
    return [gzip.compress(site_fill.body(rng, number % 1000, began)) for number in range(count)]


def _report(given: argparse.Namespace, pages: Sequence[Page], published: list[float], rate: float, told: str) -> str:
    every = [ms for page in pages for ms in page.loaded_ms if not page.fresh]
    lines = [
        f"{'PostgreSQL' if given.postgresql else 'SQLite'}: {told}.",
        f"{cpu_model()}, {os.cpu_count()} cores, site and clients on them; {given.readers} readers, {rate:.0f} "
        f"requests/s, and {len(published) / given.seconds:.1f} runs published a second.",
        "",
        "| page | KiB | CPU | alone p50 | p99 | under load p50 | p99 | requests |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for page in pages:
        lines.append(_line(page.name, f"{page.bytes / 1024:.0f}", page.alone_ms, page.loaded_ms, page.cpu_ms))
    lines += [_line("**all reads of what was drawn before**", "", [], every), _line("publish", "", [], published), "",
              "Milliseconds, from sending a request to its last byte."]  # fmt: skip
    return "\n".join(lines)


def _line(name: str, size: str, alone: Sequence[float], loaded: Sequence[float], cpu_ms: float | None = None) -> str:
    cpu = "—" if cpu_ms is None else f"{cpu_ms:.1f}"
    parts = [
        name,
        size,
        cpu,
        _quantile(alone, 0.5),
        _quantile(alone, 0.99),
        _quantile(loaded, 0.5),
        _quantile(loaded, 0.99),
    ]
    return "| " + " | ".join([*parts, str(len(loaded))]) + " |"


def _quantile(values: Sequence[float], share: float) -> str:
    """The smallest value that so many are not above; the largest of fewer than 100 for p99."""
    if not values:
        return "—"
    ordered = sorted(values)
    return f"{ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]:.1f}"


if __name__ == "__main__":
    main()
