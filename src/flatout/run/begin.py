"""The beginning of a run: start or find the server, ask who it is, plan, and open everything that the run needs."""

from __future__ import annotations

import secrets
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from flatout import __version__
from flatout import record as rec
from flatout.calibration import load_latest
from flatout.engines.base import TargetError
from flatout.engines.detect import Target, connect
from flatout.engines.launch import Launched
from flatout.engines.probe import Capabilities, probe
from flatout.flags import Status
from flatout.host.telemetry import Sampler
from flatout.load.process import LoadPool
from flatout.load.system import most_streams
from flatout.plan import Limits, PlannedCell, plan, plan_bursts, within
from flatout.prompts.book import PromptBook
from flatout.prompts.text import Corpus
from flatout.run.describe import (
    check_hardware,
    check_url,
    engine_facts,
    hardware,
    limits_of,
    machine_facts,
    protocol,
    room_facts,
    server_process,
)
from flatout.run.events import Control, Doing, Listener, Note, Started
from flatout.run.options import Options
from flatout.run.prompts import Prompter, tokenizer_file
from flatout.run.requests import once, stream
from flatout.run.session import Session
from flatout.run.store import Store, new_directory, now_iso, write_beside

LOG_LINES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Server:
    """The connected server; its process, its command line and its launcher where they are known."""

    target: Target
    pid: int | None = None
    argv: tuple[str, ...] | None = None
    launched: Launched | None = None


@contextmanager
def session(options: Options, listener: Listener, control: Control) -> Iterator[Session]:
    """A session ready to measure; what it started (server, load processes) is stopped at the end.

    Raises TargetError if the server cannot be used, ResumeError if a run cannot be gone on with.
    """
    check_url(options.url)
    check_hardware(options.hardware)
    with ExitStack() as stack:
        server = stack.enter_context(connected(options, listener, control))
        target = server.target
        listener(Doing("asking the server what it is and what it takes"))
        capabilities = probe(
            target,
            None if options.api == "auto" else options.api,
            extra_body=options.extra_body,
            temperature=options.temperature,
            on_wait=lambda text: listener(Doing("probing", wait_for=text)),
            stopping=lambda: control.stopping,
        )
        if not options.ignore_eos:
            capabilities = _without_length_fields(capabilities)
        planned, limits, room = planned_cells(target, options)
        corpus = _corpus(options.corpus)
        pool = stack.enter_context(LoadPool(_processes(options, planned), options.load_cores))
        watched = {"server": server.pid} if server.pid else {}
        watched |= {f"load_{i + 1}": pid for i, pid in enumerate(pool.pids)}
        sampler = stack.enter_context(Sampler(processes=watched))
        record, directory = _record(options, server, capabilities, planned, room, pool)
        if server.launched is not None:
            stack.callback(_keep_log, server.launched, directory)
        ready = _assemble(
            options, target, capabilities, planned, limits, pool, sampler, record, directory, listener, control, corpus
        )
        ready.store.write_record(record)
        listener(Started(record, directory))
        for note in (*target.notes, *capabilities.notes):
            listener(Note(note))
        yield ready


def _keep_log(launched: Launched, directory: Path) -> None:
    """The launched server's log, redacted, beside the record."""
    taken = sum(1 for _ in directory.glob("server*.log"))
    name = f"server-{taken + 1}.log" if taken else "server.log"
    write_beside(directory / name, launched.log_tail(lines=LOG_LINES).encode())


@contextmanager
def connected(options: Options, listener: Listener, control: Control) -> Iterator[Server]:
    """The connected server; closed, and stopped if it was launched, at the end. Raises TargetError."""
    with ExitStack() as stack:
        yield _server(options, listener, control, stack)


def _server(options: Options, listener: Listener, control: Control, stack: ExitStack) -> Server:
    url, key, launched = options.url, options.key, None
    argv: tuple[str, ...] | None = None
    pid: int | None = None
    if options.launch:
        launched = stack.enter_context(_launch(options, listener, control, stack))
        url, key, argv, pid = launched.url, launched.key, launched.argv, launched.pid
    if url is None:
        raise TargetError("not_a_server", "no server given: name its URL, or start one with --launch")
    if launched is None:
        process = server_process(url)
        argv, pid = (process.argv, process.pid) if process else (None, None)
    target = connect(
        url,
        model=options.model,
        key=key,
        headers=options.headers,
        ca_file=options.ca_file,
        insecure=options.insecure,
        engine=options.engine,
        argv=argv,
        argv_source="typed" if launched else "host",
        stopping=lambda: control.stopping,
        secrets=tuple(s for s in (options.key, key, *(value for _, value in options.headers)) if s),
    )
    stack.callback(target.close)
    return Server(target, pid, argv, launched)


def _launch(options: Options, listener: Listener, control: Control, stack: ExitStack) -> Launched:
    """The server of `--launch`, not started yet. Its raw log stays in a private directory that goes with the run."""
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="flatout-")))
    assert options.launch is not None

    def on_wait(text: str) -> None:
        if control.stopping:
            raise TargetError("stopped", "stopped while the server was starting; it is ended")
        waited = text.removeprefix("waiting for ")
        listener(Doing("starting the server", wait_for=waited, until_s=options.ready_s))

    return Launched(
        options.launch,
        log_path=folder / "server.log",
        url=options.url,
        key=options.key,
        headers=options.headers,
        ca_file=options.ca_file,
        insecure=options.insecure,
        ready_timeout_s=options.ready_s,
        on_wait=on_wait,
    )


def _without_length_fields(capabilities: Capabilities) -> Capabilities:
    fields = tuple((n, v) for n, v in capabilities.fields if n not in ("ignore_eos", "min_tokens"))
    return replace(capabilities, fields=fields)


def planned_cells(target: Target, options: Options) -> tuple[list[PlannedCell], Limits, rec.ServerRoom]:
    """The cells for this server, its limits, and the same limits as facts. Nothing is generated for this."""
    room = room_facts(target, options)
    limits = limits_of(room)
    if options.requests is not None:
        cells = plan_bursts(options.suite, limits, options.requests)
    else:
        cells = plan(options.suite, limits, max_concurrency=options.max_concurrency)
    return within(cells, most_streams(_processes(options, cells))), limits, room


def _processes(options: Options, planned: list[PlannedCell]) -> int:
    """Load processes: one reads about 40,000 events/s, which a thousand streams at 40 tok/s each make."""
    import os

    if options.load_processes is not None:
        return options.load_processes
    most = max((c.concurrency for c in planned if c.verdict == "measure"), default=1)
    return max(1, min(-(-most // 1024), (os.cpu_count() or 2) // 2))


def _record(
    options: Options,
    server: Server,
    capabilities: Capabilities,
    planned: list[PlannedCell],
    room: rec.ServerRoom,
    pool: LoadPool,
) -> tuple[rec.Record, Path]:
    record, target = _new_record(options, server, capabilities, planned, room, pool), server.target
    if options.resume is not None:
        return take_up(options.resume, record)
    engine, model = str(record.engine.name.value or record.engine.adapter), str(record.model.id.value or target.model)
    return record, new_directory(options.results, model, engine)


def _new_record(
    options: Options,
    server: Server,
    capabilities: Capabilities,
    planned: list[PlannedCell],
    room: rec.ServerRoom,
    pool: LoadPool,
) -> rec.Record:
    target, suite = server.target, options.suite
    redactor = target.redactor
    return rec.Record(
        id=uuid.uuid4().hex,
        state="running",
        started=now_iso(),
        engine=engine_facts(target, options, server.argv),
        model=target.served_model(),
        room=room,
        protocol=protocol(target, capabilities, options),
        hardware=hardware(target, options),
        client=rec.Client(
            flatout=__version__,
            python=sys.version.split()[0],
            command=redactor.argv(_without_header_values(options.command)),
            machine=machine_facts(),
            stamp_clock=pool.clock[0],
            stamp_clock_reason=pool.clock[1],
            load_processes=len(pool.pids),
        ),
        plan=rec.Plan(
            suite=suite.label,
            prefill=[str(c) for c in suite.prefill] if options.requests is None else [],
            decode=[str(c) for c in suite.decode],
            concurrency=list(suite.concurrency) if options.requests is None else [options.requests],
            time_s=suite.time_s,
            min_time_s=suite.min_time_s,
            precision=suite.precision,
            max_output=suite.max_output,
            prefill_samples=suite.prefill_samples,
            order=[c.id for c in planned],
            options=redactor.tree(options.recorded()),
            fingerprint=options.fingerprint(),
        ),
        prompts=rec.Prompts(
            mode=suite.prompts,
            source=f"file {options.corpus.name}" if options.corpus else "flatout's own generator",
            seed=options.seed,
            run_nonce="",
        ),
        cells=[_planned_cell(c) for c in planned],
        per_user_tok_s=options.per_user_tok_s,
        note=redactor.text(options.note) if options.note else None,
    )


def _without_header_values(command: tuple[str, ...]) -> list[str]:
    """The typed command; of an extra header its name only, whatever it holds."""
    kept: list[str] = []
    for word in command:
        if (kept and kept[-1] == "--header") or word.startswith("--header="):
            word = word.partition(":")[0] + ": <redacted>"
        kept.append(word)
    return kept


def _planned_cell(planned: PlannedCell) -> rec.Cell:
    cut = planned.verdict != "measure"
    return rec.Cell(
        id=planned.id,
        phase=planned.phase,
        context=planned.label,
        context_tokens=planned.context_tokens,
        concurrency=planned.concurrency,
        max_output=planned.max_output,
        need_tokens=planned.need_tokens,
        status=str(Status(planned.verdict)) if cut else str(Status.NOT_RUN),
        reason=planned.reason if cut else "not reached yet",
        finished=now_iso() if cut else None,
    )


def _assemble(
    options: Options,
    target: Target,
    capabilities: Capabilities,
    planned: list[PlannedCell],
    limits: Limits,
    pool: LoadPool,
    sampler: Sampler,
    record: rec.Record,
    directory: Path,
    listener: Listener,
    control: Control,
    corpus: Corpus | None,
) -> Session:
    calibration = load_latest()
    record.client.calibration = calibration.name if calibration else None
    box: list[Session] = []
    book = PromptBook(options.seed, corpus)
    record.prompts.run_nonce = f"{record.prompts.run_nonce} {book.salt:x}".strip()
    prompter = Prompter(book, target.adapter, capabilities, lambda text: _send_count(box[0], text))
    session = Session(
        options=options,
        target=target,
        capabilities=capabilities,
        shape=capabilities.shape(target.model, temperature=options.temperature, extra_body=options.extra_body),
        limits=limits,
        pool=pool,
        prompter=prompter,
        sampler=sampler,
        planned=planned,
        record=record,
        store=Store(directory, target.redactor.text),
        listener=listener,
        control=control,
        nonce=secrets.token_hex(4),
        calibration=calibration,
        recounter=tokenizer_file(options.tokenizer) if options.tokenizer else None,
        order=max((c.order or 0 for c in record.cells), default=0),
        spent_prompt=record.tokens_spent.get("prompt", 0) + capabilities.prompt_tokens,
        spent_output=record.tokens_spent.get("output", 0) + capabilities.output_tokens,
    )
    box.append(session)
    return session


class CorpusError(Exception):
    """A `--corpus` that cannot be used; the text says why."""


def _corpus(path: Path | None) -> Corpus | None:
    try:
        return None if path is None else Corpus(path)
    except ValueError as error:
        raise CorpusError(f"--corpus {path}: {error}") from error


def _send_count(session: Session, text: str) -> int | None:
    """Prompt tokens of `text` as the server counts them, by a request for one token."""
    session.afford(len(text) // 3, 1)
    samples = once(session, "count", [stream(session.shape, text, 1)], len(text) // 3).samples
    counted = int(samples.prompt_tokens[0]) if samples.requests else -1
    return counted if counted > 0 else None


class ResumeError(Exception):
    """The run cannot be gone on with; the text names what has changed."""


def missing(cell: rec.Cell) -> bool:
    """Whether a resumed run measures this cell: it should have a number and has none."""
    if cell.status == Status.NOT_RUN:
        return cell.finished is None or (cell.reason or "").startswith(("skipped by the user", "not tried", "token"))
    return cell.status in (Status.FAILED, Status.NO_STEADY_STATE)


def take_up(directory: Path, now: rec.Record) -> tuple[rec.Record, Path]:
    """The stopped run's record, made ready to go on, and its directory. `now`: a new record for today's server.

    Raises ResumeError naming each difference, and RecordError if there is no readable record.
    """
    path = rec.find(directory)
    old = rec.read(path)
    differences = _differences(old, now)
    if differences:
        raise ResumeError(
            "this run cannot be gone on with, since its numbers would not be comparable: " + "; ".join(differences)
        )
    for i, cell in enumerate(old.cells):
        if missing(cell):
            old.cells[i] = next(c for c in now.cells if c.id == cell.id)
    old.state, old.state_reason, old.finished = "running", None, None
    old.warnings.append(f"resumed at {now.started} (flatout {now.client.flatout})")
    old.client.stamp_clock, old.client.load_processes = now.client.stamp_clock, now.client.load_processes
    return old, path.parent


def _differences(old: rec.Record, now: rec.Record) -> list[str]:
    pairs = [
        ("engine", old.engine.name.value, now.engine.name.value),
        ("engine version", old.engine.version.value, now.engine.version.value),
        ("model", old.model.id.value, now.model.id.value),
        ("model as served", old.model.served_as.value, now.model.served_as.value),
        ("launch command", old.engine.launch_command.value, now.engine.launch_command.value),
        ("model length", old.room.model_length.value, now.room.model_length.value),
        ("KV tokens", old.room.kv_tokens.value, now.room.kv_tokens.value),
        ("limit of running requests", old.room.max_running.value, now.room.max_running.value),
        ("API", old.protocol.api, now.protocol.api),
        ("flatout", old.client.flatout, now.client.flatout),
    ]
    differences = [f"{name} was {then!r} and is {today!r}" for name, then, today in pairs if then != today]
    if old.plan.fingerprint != now.plan.fingerprint:
        changed = [
            name
            for name in ("suite", "prefill", "decode", "concurrency", "time_s", "precision", "max_output", "options")
            if getattr(old.plan, name) != getattr(now.plan, name)
        ]
        differences.append(f"the options differ in {', '.join(changed) or 'something that shapes the measurement'}")
    if [c.id for c in old.cells] != [c.id for c in now.cells]:
        differences.append("the cells differ")
    return differences
