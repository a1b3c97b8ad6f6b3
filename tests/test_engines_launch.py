"""Starting and stopping servers: nothing is left behind, whatever happens, and every wait is bounded."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.engines.base import TargetError, count, has, option
from flatout.engines.launch import Launched, listens_at, needs_shell, split

SERVER = """
import http.server, os, signal, subprocess, sys, time
kind, port, where = sys.argv[1], int(sys.argv[3]), sys.argv[4]
if "stubborn" in kind:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "family" in kind:
    deaf = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
    child = subprocess.Popen([sys.executable, "-c", deaf])
    own = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
    open(where + "/family", "w").write(f"{child.pid} {own.pid}")
if "dies" in kind:
    print("loading with key sk-verysecret-0123456789", flush=True)
    print("RuntimeError: no room for the KV cache", flush=True)
    sys.exit(7)
if "never" in kind:
    print("still loading", flush=True)
    time.sleep(300)
begun = time.monotonic()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ready = "slow" not in kind or time.monotonic() - begun > 1
        data = b'{"data": [{"id": "m"}]}' if ready else b'{"error": {"message": "Loading model"}}'
        self.send_response(200 if ready else 503)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *a):
        pass
print("up", os.environ.get("FLATOUT_MARK"), flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def command(tmp_path: Path, kind: str, port: int) -> str:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    return shlex.join([sys.executable, str(script), kind, "--port", str(port), str(tmp_path)])


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def soon(what: Callable[[], bool], within_s: float = 15.0) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.05)
    return what()


def family(tmp_path: Path) -> list[int]:
    return [int(pid) for pid in (tmp_path / "family").read_text().split()]


def test_it_is_up_inside_the_block_and_gone_after(tmp_path: Path) -> None:
    port = free_port()
    with Launched(command(tmp_path, "plain", port), log_path=tmp_path / "log" / "server.log") as server:
        assert server.url == f"http://127.0.0.1:{port}" and server.exit_code() is None
        assert server.pid is not None and alive(server.pid)
        assert server.argv[2:5] == ("plain", "--port", str(port))
    assert not alive(server.pid) and server.exit_code() is not None
    server.stop()  # may be called again


def test_it_waits_until_the_model_is_loaded_and_says_so(tmp_path: Path) -> None:
    told: list[str] = []
    with Launched(command(tmp_path, "slow", free_port()), log_path=tmp_path / "log", on_wait=told.append):
        pass
    assert told and "waiting for the server" in told[0]


def test_a_whole_stubborn_family_is_ended(tmp_path: Path) -> None:
    launched = Launched(
        command(tmp_path, "family-stubborn", free_port()), log_path=tmp_path / "log", stop_timeout_s=0.5
    )
    with launched as server:
        pids = [*family(tmp_path), int(server.pid or 0)]
        assert all(map(alive, pids))
    assert not any(map(alive, pids))


def test_an_early_end_shows_the_last_words_without_secrets(tmp_path: Path) -> None:
    launched = Launched(command(tmp_path, "dies", free_port()), log_path=tmp_path / "log", ready_timeout_s=20)
    with pytest.raises(TargetError, match="exit code 7") as caught:
        launched.start()
    assert "no room for the KV cache" in str(caught.value) and "sk-verysecret" not in str(caught.value)
    assert caught.value.kind == "unavailable" and launched.exit_code() == 7


def test_a_server_that_never_answers_is_ended_in_time(tmp_path: Path) -> None:
    launched = Launched(command(tmp_path, "family-never", free_port()), log_path=tmp_path / "log", ready_timeout_s=3)
    launched._stop_timeout_s = 0.5
    with pytest.raises(TargetError, match=r"within 3 s \(nothing listens yet\)") as caught:
        launched.start()
    assert "still loading" in str(caught.value)
    assert not any(map(alive, family(tmp_path)))


def test_an_error_inside_the_block_ends_it_too(tmp_path: Path) -> None:
    launched = Launched(command(tmp_path, "plain", free_port()), log_path=tmp_path / "log")
    with pytest.raises(KeyboardInterrupt), launched as server:
        raise KeyboardInterrupt
    assert not alive(int(server.pid or 0))


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="no-such-program"):
        Launched("no-such-program --port 1234", log_path=tmp_path / "log").start()


def test_a_port_that_is_taken_is_not_mistaken_for_the_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TargetError, match="already listens"):
            Launched(command(tmp_path, "plain", port), log_path=tmp_path / "log").start()


def test_settings_before_the_command_and_shell_syntax(tmp_path: Path) -> None:
    plain = command(tmp_path, "plain", free_port())
    log = tmp_path / "log"
    for line in (f"FLATOUT_MARK=one {plain}", f"cd {shlex.quote(str(tmp_path))} && FLATOUT_MARK=one {plain}"):
        with Launched(line, log_path=log) as server:
            assert "up one" in server.log_tail()
        assert not alive(int(server.pid or 0))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_flatout_itself_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    line = command(tmp_path, "family-stubborn", free_port())
    code = f"""
        import sys, time
        from pathlib import Path
        from flatout.engines.launch import Launched
        with Launched({line!r}, log_path=Path({str(tmp_path / "log")!r}), stop_timeout_s=0.5) as server:
            print(server.pid, flush=True)
            time.sleep(300)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()), *family(tmp_path)]
        assert all(map(alive, pids))
        os.kill(parent.pid, number)
        parent.wait(10)
        assert soon(lambda: not any(map(alive, pids)))
    finally:
        parent.kill()
        parent.wait(10)
        assert parent.stdout is not None
        parent.stdout.close()


# Command lines


@pytest.mark.parametrize(
    ("line", "url"),
    [
        ("vllm serve ./model --port 8001 --api-key sk-x", "http://127.0.0.1:8001"),
        ("vllm serve ./model", "http://127.0.0.1:8000"),
        ("python -m sglang.launch_server --model-path m", "http://127.0.0.1:30000"),
        ("llama-server -m x.gguf --port=9000 --host 0.0.0.0", "http://127.0.0.1:9000"),
        ("llama-server -m x.gguf --host ::", "http://[::1]:8080"),
        ("llama-server -m x.gguf --host 10.0.0.5", "http://10.0.0.5:8080"),
        ("OLLAMA_HOST=127.0.0.1:9999 ollama serve", "http://127.0.0.1:9999"),
        ("ollama serve", "http://127.0.0.1:11434"),
        ("transformers serve", "http://127.0.0.1:8000"),
        ("/home/vllm/llama.cpp/build/llama-server -m sglang.gguf", "http://127.0.0.1:8080"),
        ("text-generation-launcher --model-id m", "http://127.0.0.1:3000"),
        ("some-server --model x", None),
        ("some-server --port ninety", None),
        ("some-server --port 99999", None),
    ],
)
def test_where_a_command_will_listen(line: str, url: str | None) -> None:
    assert listens_at(*split(line)) == url


def test_without_a_port_the_url_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="names no --port"):
        Launched("some-server", log_path=tmp_path / "log")
    with pytest.raises(TargetError, match="cannot be read"):
        Launched("some-server 'unclosed", log_path=tmp_path / "log")
    with pytest.raises(TargetError, match="empty"):
        Launched("A=1", log_path=tmp_path / "log")


@pytest.mark.parametrize(
    ("line", "shell"),
    [
        ("vllm serve m --port 1", False),
        ('vllm serve m --speculative-config \'{"method": "x"}\'', False),
        ('vllm serve m --json "{\\"a\\": [1]}"', False),
        ("cd /x && vllm serve m", True),
        ("vllm serve m | tee log", True),
        ("vllm serve $MODEL", True),
        ('vllm serve "$MODEL"', True),
        ("vllm serve ~/m", True),
    ],
)
def test_when_the_shell_is_needed(line: str, shell: bool) -> None:
    assert needs_shell(line) is shell


def test_options() -> None:
    argv = ["x", "--a-b=1", "--a_b", "2", "-np", "4", "--flag", "--end"]
    assert option(argv, "--a-b") == "2" and option(argv, "-np", "--parallel") == "4"
    assert option(argv, "--none") is None and option(None, "--a-b") is None
    assert option(argv, "--end") is None
    assert has(argv, "--flag") and not has(argv, "--fla")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("32k", 32000),
        ("32K", 32768),
        ("1.5k", 1500),
        ("0", None),
        ("-1", None),
        ("auto", None),
        (None, None),
    ],
)
def test_counts(text: str | None, value: int | None) -> None:
    assert count(text) == value


@given(st.text(max_size=60))
def test_any_command_is_read_or_refused(line: str) -> None:
    needs_shell(line)
    try:
        environment, argv = split(line)
    except ValueError as error:
        assert str(error)
    else:
        assert argv
        url = listens_at(environment, argv)
        assert url is None or url.startswith("http://")
