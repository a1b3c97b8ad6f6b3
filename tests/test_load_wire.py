"""Answers as they come over real sockets: framing, reads that split and join, connections kept, closed and reopened."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from flatout.load.job import RID_WIDTH, Stream, Timeouts
from flatout.load.process import LoadPool, Outcome
from flatout.load.samples import CUT, FAILED, OK
from tests.load_server import (
    DONE,
    END,
    SSE_HEAD,
    Peer,
    answer,
    chunk,
    event,
    job,
    run_once,
    serving,
    soon,
)


@pytest.fixture(scope="module")
def pool() -> Iterator[LoadPool]:
    with LoadPool() as pool:
        yield pool


def errors(outcome: Outcome) -> list[str]:
    return [outcome.samples.error_texts[i] if i >= 0 else "" for i in outcome.samples.error]


def test_a_usual_answer(pool: LoadPool) -> None:
    with serving(lambda p: p.stream(answer(5), 0.03)) as server:
        outcome = run_once(pool, job(server.port), 5)
    s = outcome.samples
    assert (outcome.error, s.outcome.tolist(), s.http_status.tolist()) == (None, [OK], [200])
    assert s.texts == [" t0 t1 t2 t3 t4"]
    assert (s.prompt_tokens[0], s.cached_tokens[0], s.completion_tokens[0], s.choices[0]) == (7, 3, 5, 1)
    assert s.finish_names == ["stop"] and s.asked_tokens[0] == 16 and s.arrival_count[0] == 5
    assert s.connect_ns[0] > 0 and outcome.launch_ns <= s.send_ns[0] < s.first_byte_ns[0] < s.first_token_ns[0]
    assert s.first_token_ns[0] == s.first_answer_ns[0] == s.t_ns[0] and s.last_token_ns[0] == s.t_ns[-1] < s.end_ns[0]
    # each stamp lies behind the moment at which the server began to send that event, and before the next one
    sent = server.peers[0].token_sends_ns()
    assert all(0 <= t - b < 10_000_000 for t, b in zip(s.t_ns, sent, strict=True))


def test_the_request_on_the_wire(pool: LoadPool) -> None:
    body = b'{"x":"' + b"?" * RID_WIDTH + b'"}'
    lanes = tuple(Stream(body=body, asked_tokens=1, rid_offset=6) for _ in range(3))
    with serving(lambda p: p.stream(answer(1))) as server:
        asked = job(
            server.port, lanes=lanes, rid_prefix="r1", headers=(("Authorization", "Bearer k"),), path="/p/v1/c?q=1"
        )
        outcome = run_once(pool, asked, 5)
    assert sorted(outcome.samples.request_ids) == sorted(p.body[6:46].decode() for p in server.peers)
    assert len(set(outcome.samples.request_ids)) == 3 and all(i.startswith("r10") for i in outcome.samples.request_ids)
    head = server.peers[0].head
    assert head.startswith(b"POST /p/v1/c?q=1 HTTP/1.1\r\n") and b"Authorization: Bearer k" in head


def test_a_token_in_two_sends_takes_the_second_stamp(pool: LoadPool) -> None:
    data = chunk(event("late"))

    def script(peer: Peer) -> None:
        peer.send(SSE_HEAD + chunk(event("first")))
        time.sleep(0.03)
        peer.send(data[:20])
        time.sleep(0.05)
        peer.send(data[20:])
        time.sleep(0.3)  # a reader that is held up would take the next ones too, and their stamp
        peer.send(b"".join(map(chunk, answer(0))) + END)

    with serving(script) as server:
        s = run_once(pool, job(server.port), 5).samples
    second = server.peers[0].sends[2][0]
    assert s.arrival_count[0] == 2 and 0 <= s.t_ns[1] - second < 10_000_000


def test_three_tokens_in_one_send_share_a_stamp(pool: LoadPool) -> None:
    def script(peer: Peer) -> None:
        peer.send(SSE_HEAD)
        for i in range(4):
            peer.send(b"".join(chunk(event(f" {i}{j}")) for j in range(3)))
            time.sleep(0.2)
        peer.send(b"".join(map(chunk, answer(0))) + END)

    with serving(script) as server:
        outcome = run_once(pool, job(server.port), 5)
    s = outcome.samples
    assert s.arrival_count[0] == 12 and len(np.unique(s.t_ns)) == 4
    assert (s.t_ns.reshape(4, 3) == s.t_ns.reshape(4, 3)[:, :1]).all()
    assert outcome.checks[0].merged_reads == 0  # it always writes three: nothing was merged by us


def test_a_byte_at_a_time(pool: LoadPool) -> None:
    wire = SSE_HEAD + b"".join(map(chunk, answer(2))) + END

    def script(peer: Peer) -> None:
        for i in range(len(wire)):
            peer.send(wire[i : i + 1])

    with serving(script) as server:
        s = run_once(pool, job(server.port), 10).samples
    assert s.outcome.tolist() == [OK] and s.texts == [" t0 t1"]


BODY = b"".join(answer(3))


@pytest.mark.parametrize(
    ("wire", "closes"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY, False),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + BODY, True),
        (b"HTTP/1.0 200 OK\r\n\r\n" + BODY, True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + BODY, True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + SSE_HEAD + chunk(BODY) + END, False),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + SSE_HEAD + chunk(BODY) + END, False),
        (SSE_HEAD + chunk(BODY.replace(b"\n", b"\r\n")) + END, False),
        (SSE_HEAD + chunk(BODY[:100]) + chunk(BODY[100:].rstrip(b"\n")) + b"0\r\nX-Trailer: 1\r\n\r\n", False),
        (SSE_HEAD + chunk(BODY) + END + b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ndata: ha\n", False),
        (SSE_HEAD + chunk(BODY) + END + b"garbage", False),
        (SSE_HEAD + chunk(BODY), True),  # cut before the last chunk, after [DONE]: it is whole
    ],
)
def test_framings(pool: LoadPool, wire: bytes, closes: bool) -> None:
    def script(peer: Peer) -> bool:
        peer.send(wire)
        return closes

    with serving(script) as server:
        outcome = run_once(pool, job(server.port, 2, mode="closed", max_requests=6), 5)
    s = outcome.samples
    assert errors(outcome) == [""] * 6 and s.outcome.tolist() == [OK] * 6
    assert s.texts == [" t0 t1 t2"] * 6 and s.completion_tokens.tolist() == [3] * 6
    keeps = not closes and b"garbage" not in wire and b"data: ha" not in wire
    # TTFT is taken on connections that are open: only a first request on one carries a connect time
    assert server.connections == 2 if keeps else server.connections >= 6
    assert (s.connect_ns >= 0).sum() == (2 if keeps else 6)


def test_connection_close_opens_the_next_one_meanwhile(pool: LoadPool) -> None:
    def script(peer: Peer) -> bool:
        peer.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + event("a"))
        if peer.number < 2:  # after the last one comes none
            soon(lambda: server.connections == peer.number + 2)
        opened.append(server.connections)
        peer.send(b"".join(answer(0)))
        return True

    opened: list[int] = []
    with serving(script) as server:
        s = run_once(pool, job(server.port, mode="closed", max_requests=3), 5).samples
    assert s.outcome.tolist() == [OK] * 3
    assert opened[:2] == [2, 3]  # while the answer was running
    assert ((s.send_ns[1:] - s.end_ns[:-1]) < 20_000_000).all()


def test_ten_megabytes_in_one_event(pool: LoadPool) -> None:
    text = "x" * 10_000_000

    def script(peer: Peer) -> None:
        peer.stream([event("a"), event(text), *answer(1)])

    with serving(script) as server:
        s = run_once(pool, job(server.port), 15).samples
    assert s.outcome.tolist() == [OK] and s.text_len.tolist() == [1, 10_000_000, 3]
    assert s.texts is not None and s.texts[0] == "a" + text + " t0"


def test_a_large_body_is_written_in_parts(pool: LoadPool) -> None:
    body = b'{"x":"' + b"y" * 8_000_000 + b'"}'

    def script(peer: Peer) -> None:
        peer.stream(answer(1))

    with serving(script) as server:
        s = run_once(pool, job(server.port, 2, body=body), 15).samples
    assert s.outcome.tolist() == [OK, OK] and all(p.body == body for p in server.peers)


def test_slow_heads(pool: LoadPool) -> None:
    def script(peer: Peer) -> None:
        for i in range(0, len(SSE_HEAD), 10):
            peer.send(SSE_HEAD[i : i + 10])
            time.sleep(0.02 if i else 0.3)
        peer.send(b"".join(map(chunk, answer(1))) + END)

    with serving(script) as server:
        s = run_once(pool, job(server.port), 5).samples
    first = server.peers[0].sends[0][0]
    assert 0 <= s.first_byte_ns[0] - first < 10_000_000 and s.first_token_ns[0] - s.first_byte_ns[0] > 100_000_000


def test_a_stale_connection_is_replaced_without_a_failure(pool: LoadPool) -> None:
    def script(peer: Peer) -> bool:
        if peer.served:  # closes a kept connection as the next request comes in
            return True
        peer.stream(answer(2))
        return False

    with serving(script) as server:
        outcome = run_once(pool, job(server.port, mode="closed", max_requests=4), 5)
    s = outcome.samples
    assert errors(outcome) == [""] * 4 and s.outcome.tolist() == [OK] * 4
    assert (s.connect_ns > 0).all() and s.round.tolist() == [0, 1, 2, 3]


def test_a_server_that_closes_fresh_connections_fails(pool: LoadPool) -> None:
    with serving(lambda p: True) as server:
        outcome = run_once(pool, job(server.port, mode="closed"), 5)
    assert outcome.samples.outcome.tolist() == [FAILED] * 3
    assert "closed the connection without an answer" in (outcome.error or "")


@pytest.mark.parametrize("tokens", [2, 300])
def test_an_answer_that_is_done_but_kept_open_ends(pool: LoadPool, tokens: int) -> None:
    def script(peer: Peer) -> None:
        peer.send(SSE_HEAD)
        for data in answer(tokens):
            peer.send(chunk(data))
            time.sleep(0.001)
        time.sleep(4)

    with serving(script) as server:
        began = time.monotonic()
        outcome = run_once(pool, job(server.port), 5)
    s = outcome.samples
    assert s.outcome.tolist() == [OK] and time.monotonic() - began < 4
    assert s.end_ns[0] - s.last_token_ns[0] < 100_000_000  # its end is when it came, not when we gave up


def test_a_closed_loop_goes_on_at_once_until_it_is_stopped(pool: LoadPool) -> None:
    with serving(lambda p: p.stream(answer(10), 0.005)) as server:
        pool.start(job(server.port, 4, mode="closed"))
        status = pool.wait(10, until=lambda s: s.finished >= 20)
        assert status.started == status.connected == 4 and status.finished >= 20 and not status.ended
        outcome = pool.stop()
        assert soon(lambda: server.open_now == 0), "nothing is left running"
    s = outcome.samples
    assert set(s.outcome.tolist()) <= {OK, CUT} and (s.outcome == OK).sum() >= 20
    for stream in range(4):
        mine = np.flatnonzero(s.stream == stream)
        assert s.round[mine].tolist() == list(range(len(mine)))
        assert (s.connect_ns[mine[1:]] == -1).all()  # kept alive
        assert ((s.send_ns[mine[1:]] - s.end_ns[mine[:-1]]) < 20_000_000).all()
    cut = s.outcome == CUT
    assert (s.error[cut] == -1).all() and (s.end_ns[cut] >= s.last_token_ns[cut]).all()
    assert server.connections == 4


def test_the_first_round_has_its_own_bodies(pool: LoadPool) -> None:
    lanes = tuple(
        Stream(body=b'{"full":1}', asked_tokens=8, first_body=b'{"first":%d}' % i, first_asked_tokens=i)
        for i in range(3)
    )
    with serving(lambda p: p.stream(answer(1))) as server:
        s = run_once(pool, job(server.port, lanes=lanes, mode="closed", max_requests=9), 5).samples
    firsts = [b'{"first":%d}' % i for i in range(3)]
    assert sorted(p.body for p in server.peers) == [*firsts, *[b'{"full":1}'] * 6]
    first = s.round == 0
    assert (s.asked_tokens[first] == s.stream[first]).all() and (s.asked_tokens[~first] == 8).all()


def test_a_long_first_answer_is_followed_by_the_full_body(pool: LoadPool) -> None:
    """More reads than are decoded before the lane goes on."""
    lanes = (Stream(body=b"{}", asked_tokens=8, first_body=b'{"first":1}', first_asked_tokens=4),)
    with serving(lambda p: p.stream(answer(150), 0.001)) as server:
        s = run_once(pool, job(server.port, lanes=lanes, mode="closed", max_requests=2), 10).samples
    assert [p.body for p in server.peers] == [b'{"first":1}', b"{}"]
    assert s.asked_tokens.tolist() == [4, 8] and s.arrival_count.tolist() == [150, 150]


def test_the_budget_of_requests_is_kept(pool: LoadPool) -> None:
    with serving(lambda p: p.stream(answer(1))) as server:
        outcome = run_once(pool, job(server.port, 3, mode="closed", max_requests=7), 5)
        assert outcome.samples.requests == 7 == len(server.peers)
        outcome = run_once(pool, job(server.port, 4, mode="closed", max_requests=2), 5)
        assert outcome.samples.requests == 2 and len(server.peers) == 9


def test_all_are_sent_at_one_moment_once_all_are_connected(pool: LoadPool) -> None:
    with serving(lambda p: p.stream(answer(1))) as server:
        outcome = run_once(pool, job(server.port, 200), 10)
    s = outcome.samples
    assert s.outcome.tolist() == [OK] * 200 and s.send_ns.max() - s.send_ns.min() < 200_000_000
    assert (s.connect_ns > 0).all()


def test_counts_per_bin(pool: LoadPool) -> None:
    with serving(lambda p: p.stream(answer(300), 0.004)) as server:
        pool.start(job(server.port, 2, mode="closed", timeouts=Timeouts()))
        assert pool.look(10_000_000).t0_ns in (-1, pool.look(10_000_000).t0_ns)
        pool.wait(0.5)
        first = pool.look(100_000_000)
        pool.wait(0.4)
        second = pool.look(100_000_000)
        finer = pool.look(20_000_000)
        outcome = pool.stop()
    t = outcome.samples.t_ns
    assert first.t0_ns == second.t0_ns == outcome.launch_ns
    whole = len(second.counts) - 1  # the last bin is still filling up
    true = np.bincount((t - second.t0_ns) // 100_000_000, minlength=whole + 1)
    assert list(second.counts[:whole]) == true[:whole].tolist()
    assert list(first.counts[: len(first.counts) - 1]) == true[: len(first.counts) - 1].tolist()
    assert sum(finer.counts) >= sum(second.counts)
    assert list(finer.counts[:5]) == np.bincount((t - second.t0_ns) // 20_000_000, minlength=5)[:5].tolist()


def test_how_many_decode_per_bin_and_when_the_launch_began(pool: LoadPool) -> None:
    """Three streams whose answers take 0.2 s, and a pause before each: held against the samples."""

    def script(peer: Peer) -> None:
        time.sleep(0.05)
        peer.stream(answer(50), 0.004)

    with serving(script) as server:
        pool.start(job(server.port, 3, mode="closed", timeouts=Timeouts()))
        pool.wait(0.9)
        seen, status = pool.look(5_000_000), pool.status()
        s = pool.stop().samples
    bins = len(seen.counts)
    assert len(seen.decoding) == bins > 60 and max(seen.decoding) == 3
    ends_ns = seen.t0_ns + (np.arange(bins) + 1) * 5_000_000
    had = s.first_token_ns >= 0
    true = (s.first_token_ns[had][:, None] < ends_ns).sum(0) - (s.last_token_ns[had][:, None] < ends_ns).sum(0)
    sure = slice(0, bins - 20)  # what was still running when one looked ended later
    assert np.abs(np.array(seen.decoding)[sure] - true[sure]).max() <= 1
    assert (np.array(seen.decoding)[sure] != true[sure]).mean() < 0.05
    launch = s.round == 0
    assert (
        abs(status.sent_ns - s.send_ns[launch].mean()) < 2
        and abs(status.token_ns - s.first_token_ns[launch].mean()) < 2
    )


def test_done_without_text_and_unfinished_events(pool: LoadPool) -> None:
    """A finish reason without [DONE] is a whole answer; [DONE] without one too, but it names no reason."""
    scripts = iter([answer(2, done=False), answer(2, finish=None), [*answer(1, done=False), DONE.rstrip(b"\n")]])
    with serving(lambda p: p.stream(next(scripts))) as server:
        s = run_once(pool, job(server.port, mode="closed", max_requests=3), 5).samples
    assert s.outcome.tolist() == [OK] * 3 and s.finish.tolist() == [0, -1, 0]
