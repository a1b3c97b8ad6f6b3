"""The load processes: what they load, how they die, what they report; their clock against the server's log."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from array import array
from pathlib import Path
from typing import Literal

import numpy as np
import psutil
import pytest

from flatout.calibrate.bench import Scene, job_for
from flatout.calibrate.compare import stamps
from flatout.load import clock as clock_module
from flatout.load import process
from flatout.load.clock import Clock
from flatout.load.job import Stream
from flatout.load.process import JobRefused, LoadError, LoadPool
from flatout.load.samples import CUT, OK
from flatout.load.system import SPARE_FILES, allow_files
from flatout.load.watch import Watch
from flatout.rig import RigConfig, running
from flatout.rig.truth import SENT
from tests.load_server import Server, answer, job, run_once, serving

ROOT = Path(__file__).parents[1]


def wrapped(monkeypatch: pytest.MonkeyPatch, before: str = "", after: str = "") -> None:
    """Lets load processes run `before` and `after` around their main function."""
    script = (
        textwrap.dedent(before) + "\nimport sys\nfrom flatout.load.child import main\ncode = main(int(sys.argv[1]))\n"
    )
    monkeypatch.setattr(process, "COMMAND", ("-P", "-c", script + textwrap.dedent(after) + "\nsys.exit(code)\n"))


def test_only_light_parts_are_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "modules"
    wrapped(monkeypatch, after=f"open({str(out)!r}, 'w').write(' '.join(sys.modules))")
    with serving(lambda p: p.stream(answer(3))) as server, LoadPool() as pool:
        assert run_once(pool, job(server.port), 5).samples.outcome.tolist() == [OK]
    modules = out.read_text().split()
    ours = {m for m in modules if m.startswith("flatout")}
    assert "flatout.load.reader" in ours
    assert all(m in {"flatout", "flatout.net", "flatout.protocol"} or m.startswith("flatout.load") for m in ours)
    foreign = {m.split(".")[0] for m in modules} - set(sys.stdlib_module_names) - {"flatout", "__main__"}
    foreign = {m for m in foreign if not m.startswith(("_cython", "cython_runtime", "_distutils_hack", "_virtualenv"))}
    assert foreign - {"typing_extensions"} == {"httptools", "msgspec", "numpy"}  # msgspec or numpy take that one


def test_streams_are_dealt_and_come_back_under_their_numbers() -> None:
    lanes = tuple(Stream(body=b'{"n":%d}' % i, asked_tokens=i) for i in range(7))
    with serving(lambda p: p.stream(answer(20), 0.005)) as server, LoadPool(3) as pool:
        assert len(set(pool.pids)) == 3
        pool.start(job(server.port, lanes=lanes, mode="closed", max_requests=20))
        status = pool.wait(10)
        outcome = pool.stop()
        assert (status.sent, status.finished, status.started, status.ended) == (20, 20, 7, True)
        s = outcome.samples
        assert s.requests == 20 and len(outcome.checks) == 3 and set(s.stream.tolist()) == set(range(7))
        assert (s.asked_tokens == s.stream).all()
        assert s.send_ns[s.round == 0].max() - s.send_ns.min() < 100_000_000  # one launch for all processes
        assert outcome.launch_ns <= s.send_ns.min()
        assert all(len(np.unique(s.t_ns[s.arrivals_of(r)])) > 10 for r in range(20))
        again = run_once(pool, job(server.port, 2), 5)  # more processes than streams
    assert again.samples.outcome.tolist() == [OK, OK] and len(again.checks) == 2


def test_a_killed_process_is_told_at_once() -> None:
    with serving(lambda p: p.stream(answer(1000), 0.01)) as server, LoadPool(2) as pool:
        pool.start(job(server.port, 2, mode="closed"))
        pool.wait(5, until=lambda s: s.started == 2)
        os.kill(pool.pids[1], signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(LoadError, match=rf"{pool.pids[1]} was killed by signal 9"):
            pool.wait(10)
        assert time.monotonic() - began < 3
        with pytest.raises(LoadError, match="signal 9"):
            pool.stop()


def test_a_hung_process_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "COUNT_S", 0.3)
    with serving(lambda p: p.stream(answer(1000), 0.01)) as server, LoadPool() as pool:
        pool.start(job(server.port, mode="closed"))
        pool.wait(5, until=lambda s: s.started == 1)
        os.kill(pool.pids[0], signal.SIGSTOP)
        with pytest.raises(LoadError, match="did not count its events within"):
            pool.look(100_000_000)
        monkeypatch.setattr(process, "SILENCE_S", 0.5)
        with pytest.raises(LoadError, match=r"has not answered for 0\.5 s"):
            pool.wait(30)
        began = time.monotonic()
    assert time.monotonic() - began < 5  # closing does not wait for it either


def test_a_fault_inside_is_told_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped(monkeypatch, "import flatout.load.driver as d\nd.Driver.launch = lambda self: 1 // 0")
    with serving(lambda p: None) as server, LoadPool() as pool, pytest.raises(LoadError, match="ZeroDivisionError"):
        run_once(pool, job(server.port), 5)


def test_a_process_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "COMMAND", ("-c", "raise SystemExit('no such thing')"))
    with pytest.raises(LoadError, match="no such thing"):
        LoadPool()


def test_children_ignore_ctrl_c_and_die_with_their_parent() -> None:
    script = "import time\nfrom flatout.load.process import LoadPool\np = LoadPool(2)\nprint(*p.pids, flush=True)"
    script += "\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        for child in children:
            child.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert all(c.is_running() and c.status() != psutil.STATUS_ZOMBIE for c in children)
        parent.kill()
        parent.wait(5)
        gone, alive = psutil.wait_procs(children, timeout=5)
    assert len(gone) == 2 and not alive


def test_closing_ends_the_processes() -> None:
    pool = LoadPool(2)
    children = [psutil.Process(pid) for pid in pool.pids]
    pool.close()
    pool.close()
    assert not any(c.is_running() and c.status() != psutil.STATUS_ZOMBIE for c in children)


def test_files(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    limits = {"now": (100, 500)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.update(now=new))
    allow_files(90)
    assert limits["now"] == (100, 500)
    allow_files(300)
    assert limits["now"] == (300, 500)
    with pytest.raises(ValueError, match=r"600 open files .* allows 500"):
        allow_files(600)


def test_too_many_streams_are_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped(monkeypatch, "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (128, 256))")
    with serving(lambda p: p.stream(answer(1))) as server, LoadPool() as pool:
        pids = pool.pids
        for _ in range(2):
            with pytest.raises(JobRefused, match="open files are needed"):
                pool.start(job(server.port, 200))
            assert run_once(pool, job(server.port, 90), 5).samples.outcome.tolist() == [OK] * 90
        assert pool.pids == pids


def test_one_process_of_several_that_refuses_leaves_all_of_them_good(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only one of the two is short of files; the other has taken its part of the job by then."""
    mark = str(tmp_path / "short")
    before = f"""
    import os, resource
    import flatout.load.child as c
    try:
        os.close(os.open({mark!r}, os.O_CREAT | os.O_EXCL))
        c.SPARE_FILES = 200
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    except FileExistsError:
        pass
    """
    wrapped(monkeypatch, before)
    with serving(lambda p: p.stream(answer(2))) as server, LoadPool(2) as pool:
        for _ in range(2):
            with pytest.raises(JobRefused, match="open files are needed"):
                pool.start(job(server.port, 60))
            assert run_once(pool, job(server.port, 4), 5).samples.outcome.tolist() == [OK] * 4


def test_few_files_are_enough_for_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped(monkeypatch, "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))")
    with serving(lambda p: p.stream(answer(1))) as server, LoadPool() as pool:
        assert run_once(pool, job(server.port), 5).samples.outcome.tolist() == [OK]
        most = (64 - SPARE_FILES) // 2
        outcome = run_once(pool, job(server.port, most, mode="closed", max_requests=4 * most), 5)
        assert outcome.samples.outcome.tolist() == [OK] * 4 * most
        with pytest.raises(JobRefused):
            pool.start(job(server.port, most + 1))


def test_a_pool_can_be_started_again() -> None:
    """Whatever has become of its processes: as many as before, others, and the old ones gone."""
    with serving(lambda p: p.stream(answer(3)) if p.body == b"{}" else p.stream(answer(1000), 0.01)) as server:
        with LoadPool(2) as pool:
            for how in ("killed", "hung", "whole", "closed"):
                old = [psutil.Process(pid) for pid in pool.pids]
                pool.start(job(server.port, 2, mode="closed"))
                pool.wait(5, until=lambda s: s.started == 2)
                if how == "killed":
                    old[1].kill()
                    with pytest.raises(LoadError, match="signal 9"):
                        pool.wait(10)
                elif how == "hung":
                    old[0].suspend()
                elif how == "closed":
                    pool.close()
                pool.restart()
                assert len(pool.pids) == 2 and not set(pool.pids) & {p.pid for p in old}
                assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in old)
                assert run_once(pool, job(server.port, 2, body=b"{}"), 5).samples.outcome.tolist() == [OK, OK]
        assert not any(psutil.pid_exists(pid) and psutil.Process(pid).ppid() == os.getpid() for pid in pool.pids)


def test_a_pool_that_cannot_be_started_again_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with LoadPool() as pool:
        whole = process.COMMAND
        monkeypatch.setattr(process, "COMMAND", ("-c", "raise SystemExit('no such thing')"))
        with pytest.raises(LoadError, match="no such thing"):
            pool.restart()
        monkeypatch.setattr(process, "COMMAND", whole)
        pool.restart()
        assert pool.clock[0] in ("kernel", "user")


def test_no_descriptors_left_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(process.subprocess, "Popen", none)
    with pytest.raises(LoadError, match="cannot be started: Too many open files"):
        LoadPool(2)


CLOSED = """
import itertools, os, sys
from flatout.load.process import LoadPool
from tests.load_server import job, run_once
children = []
for closed in itertools.chain.from_iterable(itertools.combinations((0, 1, 2), n) for n in range(4)):
    pid = os.fork()
    if pid:
        children.append(pid)
        continue
    for fd in closed:
        os.close(fd)
    with LoadPool(2) as pool:
        outcomes = run_once(pool, job(int(sys.argv[1]), 3), 20).samples.outcome.tolist()
    os._exit(7 if outcomes == [0, 0, 0] else 1)
sys.exit(0 if [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [7] * 8 else 1)
"""


def test_closed_standard_streams_take_nothing_from_the_load_processes() -> None:
    """`flatout run … 2>&-`: the numbers of closed streams are handed out again, and must not reach the children."""
    with serving(lambda p: p.stream(answer(3))) as server:
        done = subprocess.run([sys.executable, "-c", CLOSED, str(server.port)], cwd=ROOT, timeout=60)
        assert done.returncode == 0
        assert len(server.peers) == 3 * 8


@pytest.mark.parametrize(("closing", "said"), [(3, None), (100, "closes its connections before a request")])
def test_connections_closed_before_the_launch_are_reopened(
    monkeypatch: pytest.MonkeyPatch, closing: int, said: str | None
) -> None:
    wrapped(
        monkeypatch,
        """
        import time
        import flatout.load.driver as d
        ready, begun = d.Driver.ready.fget, time.monotonic()
        d.Driver.ready = property(lambda self: time.monotonic() - begun > 1.0 and ready(self))
        """,
    )

    def greet(server: Server, sock: socket.socket) -> bool:
        return server.connections <= closing

    with serving(lambda p: p.stream(answer(2)), hang_up=greet) as server, LoadPool() as pool:
        outcome = run_once(pool, job(server.port), 5)
        assert server.connections == (4 if said is None else 6)
    if said is None:
        assert outcome.error is None and outcome.samples.outcome.tolist() == [OK]
    else:
        assert said in (outcome.error or "")


# the clock


def test_the_self_test_chooses_a_clock_and_says_why() -> None:
    clock = Clock()
    if sys.platform == "linux":
        assert (clock.kind, clock.reason) == ("kernel", None) or clock.reason
    assert Clock(kernel=False).kind == "user" and Clock(kernel=False).reason
    clock.close()


def test_a_kernel_without_stamps_gives_the_user_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_module, "SO_TIMESTAMPNS", 0x7FFF)
    assert "refuses receive stamps" in (Clock().reason or "")
    monkeypatch.setattr(clock_module, "SO_TIMESTAMPNS", 9)  # SO_KEEPALIVE: accepted, and no stamp
    monkeypatch.setattr(clock_module, "_TRIES", 5)
    assert Clock().reason == "the kernel gives no receive stamps on TCP"


def test_a_wrong_stamp_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_module, "clock_offset_ns", lambda: time.time_ns() - time.monotonic_ns() - 5_000_000)
    assert "off this process's clock" in (Clock().reason or "")


def test_steps_of_the_wall_clock_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(kernel=False)
    true = clock_module.clock_offset_ns
    assert clock.sample() and clock.steps == 0
    monkeypatch.setattr(clock_module, "clock_offset_ns", lambda: true() + 3_600_000_000_000)
    clock.sample()
    clock.sample()
    assert clock.steps == 1


def test_the_fallback_without_epoll_and_without_stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped(
        monkeypatch,
        """
        import select
        import flatout.load.clock as c
        import flatout.load.child as child
        from flatout.load.system import SelectorPoller
        c.Clock.__init__.__kwdefaults__["kernel"] = False
        child.make_poller = SelectorPoller
        """,
    )
    with serving(lambda p: p.stream(answer(20), 0.005)) as server, LoadPool() as pool:
        assert pool.clock[0] == "user" and pool.clock[1]
        lanes = tuple(Stream(body=b'{"n":%d}' % i, asked_tokens=20) for i in range(3))
        outcome = run_once(pool, job(server.port, lanes=lanes, mode="closed", max_requests=6), 10)
    s, check = outcome.samples, outcome.checks[0]
    assert s.outcome.tolist() == [OK] * 6 and s.arrival_count.tolist() == [20] * 6
    assert (check.clock, check.unstamped_reads) == ("user", 0) and check.clock_reason
    for stream in range(3):
        first = next(p for p in server.peers if p.body == b'{"n":%d}' % stream)
        sent = [t for t, data in first.sends if b'" t' in data]
        (row,) = np.flatnonzero((s.stream == stream) & (s.round == 0))
        assert all(t - b > 0 for t, b in zip(s.t_ns[s.arrivals_of(int(row))], sent, strict=True))


def test_a_wall_clock_set_in_the_middle_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's idea of the offset is off by an hour from some moment on, as if the clock had just been set."""
    wrapped(
        monkeypatch,
        """
        import time
        import flatout.load.driver as d
        tick = d.Driver.tick
        def broken(self, now_ns):
            tick(self, now_ns)
            if self.launched_ns > 0 and now_ns - self.launched_ns > 2e8 and not hasattr(self, "spoilt"):
                self.spoilt = True
                self.clock.offset_ns += 3_600_000_000_000
        d.Driver.tick = broken
        """,
    )
    with serving(lambda p: p.stream(answer(120), 0.005)) as server, LoadPool() as pool:
        outcome = run_once(pool, job(server.port), 10)
    s = outcome.samples
    assert outcome.checks[0].realtime_offset_steps == 1
    sent = server.peers[0].token_sends_ns()
    assert all(0 <= t - b < 20_000_000 for t, b in zip(s.t_ns, sent, strict=True))


# what it says about itself


def test_self_check() -> None:
    with serving(lambda p: p.stream(answer(12), 0.025)) as server, LoadPool(cores=[0]) as pool:
        assert psutil.Process(pool.pids[0]).cpu_affinity() == [0]
        outcome = run_once(pool, job(server.port, 4), 10)
    check = outcome.checks[0]
    assert 4 * 12 <= check.reads <= 4 * 20 and check.gc_pauses == 0
    assert 0 < check.cpu_s < check.wall_s < 5
    if check.clock == "kernel":
        assert check.lag_p50_ns is not None and check.lag_worst_ns is not None and check.lag_p99_ns is not None
        assert 0 < check.lag_p50_ns <= check.lag_p99_ns <= check.lag_worst_ns * 1.05
        assert max(check.lag_max_ns) == check.lag_worst_ns and len(check.lag_t_ns) == len(check.lag_max_ns)
        assert np.diff(check.lag_t_ns).min() >= 100_000_000


def test_watch_counts() -> None:
    watch = Watch(Clock(kernel=False))
    watch.begin()
    assert not gc.isenabled()
    now = time.monotonic_ns()
    stamps = array("q", [now + i * 50_000_000 for i in range(4)])
    lags = array("i", [1_000, 2_000_001, -1, 3_000])
    watch.note(stamps, lags)
    watch.note_merged(array("q", [stamps[0], stamps[1], stamps[1], stamps[3]]), stamps, lags)
    watch.note_merged(array("q", [stamps[1]] * 3 + [stamps[3]] * 3), stamps, lags)  # it always writes three
    gc.collect()
    watch.end()
    assert gc.isenabled()
    report = watch.report()
    assert (report.reads, report.late_reads, report.merged_reads, report.lag_worst_ns) == (4, 1, 1, 2_000_001)
    assert report.gc_pauses == 1 and report.gc_longest_ns > 0
    assert report.lag_p50_ns == pytest.approx(3_000, rel=0.05)
    assert report.lag_max_ns == (2_000_001, 3_000)


def test_memory_stays_bounded_by_decoding_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped(monkeypatch, "import flatout.load.ledger as m\nm.EAGER_BYTES, m.FORCED_BYTES = 20_000, 40_000")
    with serving(lambda p: p.stream(answer(2000))) as server, LoadPool() as pool:
        outcome = run_once(pool, job(server.port, 4), 20)
    s = outcome.samples
    assert s.outcome.tolist() == [OK] * 4 and s.arrival_count.tolist() == [2000] * 4
    assert s.texts is not None and set(s.texts) == {"".join(f" t{i}" for i in range(2000))}


# the truth


@pytest.mark.parametrize("pattern", ["step", "spread"])
def test_stamps_against_the_log_of_what_was_sent(pattern: Literal["step", "spread"]) -> None:
    scene = Scene("8 × 200", "scale", 8, 200.0, pattern, answers_s=1.0)
    with running(RigConfig(dialect="vllm", decode_tok_s=200.0, pattern=pattern)) as rig, LoadPool() as pool:
        pool.start(job_for(scene, rig.url, "t"))
        pool.wait(10, until=lambda s: s.finished >= 12)
        outcome = pool.stop()
        truth = rig.log()
    s, number = outcome.samples, {rid: i for i, rid in enumerate(truth.rid)}
    assert set(s.outcome.tolist()) <= {OK, CUT} and s.requests >= 12
    sent = (truth.event_flags & SENT) > 0
    for r in range(s.requests):
        events = sent & (truth.event_request == number[s.request_ids[r]])
        mine = s.arrivals_of(r)
        count = mine.stop - mine.start
        assert s.running_tokens[mine].tolist() == list(np.cumsum(truth.event_tokens[events])[:count])
        if s.outcome[r] == OK:
            assert count == events.sum() and s.completion_tokens[r] == truth.event_tokens[events].sum()
    error_us = stamps(s, truth, 0, 1 << 62).error_us
    assert error_us.min() > -5  # no stamp before its event was sent, but for the reading of the clocks' offset
    if outcome.checks[0].clock == "kernel":
        assert np.median(error_us) < 50
