"""The embedded engine: a real llama.cpp server with our random model, started, used over HTTP, and always stopped."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from flatout.demo import EngineMissing, model, serve, start
from flatout.demo.start import EngineFailed, EngineHandle, running
from flatout.prompts.book import PromptBook

pytest.importorskip("xllamacpp")
pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

KEY = "sk-test-5f1c9a7d"


def wait_for(condition: Callable[[], bool], what: str, limit_s: float = 20) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {limit_s} s"
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    """Ended; a zombie that nobody collects counts, since in a container nobody may."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache") / "flatout"


@pytest.fixture(scope="module")
def engine(directory: Path) -> Iterator[EngineHandle]:
    with running(directory=directory, threads=1) as handle:
        yield handle


@pytest.fixture
def client(engine: EngineHandle) -> Iterator[httpx.Client]:
    """Keeps no connection: llama.cpp closes each half a millisecond after a stream, and says keep-alive to it."""
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=engine.url, timeout=60, trust_env=False, limits=limits) as made:
        yield made


def chat(client: httpx.Client, text: str, max_tokens: int, **more: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, **more}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def chat_tokens(client: httpx.Client, text: str) -> int:
    """What the server will count: the chat template applied, special tokens as such."""
    prompt = client.post("/apply-template", json={"messages": [{"role": "user", "content": text}]}).json()["prompt"]
    return len(tokens_of(client, prompt, parse_special=True))


def tokens_of(client: httpx.Client, text: str, **more: Any) -> list[int]:
    tokens: list[int] = client.post("/tokenize", json={"content": text, **more}).json()["tokens"]
    return tokens


# --- the model


def test_model_is_the_same_each_time_it_is_written(tmp_path: Path) -> None:
    model.write_model(tmp_path / "one.gguf")
    code = f"import pathlib, flatout.demo.model as m; m.write_model(pathlib.Path({str(tmp_path / 'two.gguf')!r}))"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)
    one, two = (hashlib.sha256((tmp_path / f"{name}.gguf").read_bytes()).hexdigest() for name in ("one", "two"))
    assert one == two
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.gguf", "two.gguf"], "something was left beside"


def test_model_is_built_once_and_keyed_by_its_shape(tmp_path: Path) -> None:
    small = model.Shape(layers=4, feed_forward=128)
    path = model.ensure_model(tmp_path / "new" / "cache", small)
    written = path.stat()
    assert model.ensure_model(tmp_path / "new" / "cache", small) == path
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (written.st_mtime_ns, written.st_ino)
    assert model.ensure_model(tmp_path / "new" / "cache", model.Shape(layers=4, feed_forward=256)) != path


def test_model_has_the_hybrid_shape(directory: Path) -> None:
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(model.ensure_model(directory))
    names = {tensor.name for tensor in reader.tensors}
    full = [layer for layer in range(12) if f"blk.{layer}.attn_k.weight" in names]
    linear = [layer for layer in range(12) if f"blk.{layer}.ssm_conv1d.weight" in names]
    assert (full, linear) == ([3, 7, 11], [0, 1, 2, 4, 5, 6, 8, 9, 10])
    assert 45e6 < sum(int(tensor.n_elements) for tensor in reader.tensors) < 50e6
    for tensor in reader.tensors:
        if tensor.name == "blk.0.ffn_up.weight":
            weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert abs(float(weights.mean())) < 1e-3
            assert float(weights.std()) == pytest.approx(512**-0.5, rel=0.01)


def test_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert model.cache_dir() == tmp_path / "flatout"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert model.cache_dir() == tmp_path / "home" / ".cache" / "flatout"


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot be written to .*file.*Set XDG_CACHE_HOME"):
        model.ensure_model(tmp_path / "file")


# --- the server


def test_server_says_who_it_is(client: httpx.Client, engine: EngineHandle) -> None:
    card = client.get("/v1/models").json()["data"][0]
    assert card["id"] == engine.model
    assert card["meta"]["n_ctx"] == engine.ctx // engine.parallel == 4096
    props = client.get("/props").json()
    assert props["total_slots"] == engine.parallel == 4
    assert "<|im_start|>" in props["chat_template"]
    assert len(client.get("/slots").json()) == 4
    assert "llamacpp:requests_processing 0" in client.get("/metrics").text


def test_stream_gives_every_token_and_never_ends_early(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "Good morning."}], "max_tokens": 200, "stream": True}
    texts, usage, finish = [], None, None
    with client.stream("POST", "/v1/chat/completions", json=body | {"stream_options": {"include_usage": True}}) as got:
        assert got.status_code == 200
        for line in got.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                texts.append(choice["delta"].get("content") or "")
                finish = choice["finish_reason"] or finish
    words = [text for text in texts if text]
    assert usage is not None and usage["completion_tokens"] == 200 == len(words)
    assert finish == "length"
    assert all(word[0] == " " and word[1:].isascii() and word[1:].isalpha() and word.islower() for word in words)
    assert len(tokens_of(client, "".join(words))) == 200


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0}])
def test_text_does_not_loop(client: httpx.Client, sampling: dict[str, float]) -> None:
    for question in ("One.", "What is the time?", "Tell me a long story about a lamp."):
        words = chat(client, question, 600, **sampling)["choices"][0]["message"]["content"].split()
        grams = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
        assert len(set(grams)) > 0.98 * len(grams), (sampling, question)


def test_prompts_are_exact_by_tokenize_and_by_sending(client: httpx.Client) -> None:
    book = PromptBook(11)
    for target in (64, 256, 1024, 2048):
        prompt = book.counted_prompt(f"counted/{target}", target, lambda text: chat_tokens(client, text))
        assert prompt.exact and prompt.text is not None
        assert chat(client, prompt.text, 1)["usage"]["prompt_tokens"] == target
    sent = book.sent_prompt("sent", 700, lambda text: int(chat(client, text, 1)["usage"]["prompt_tokens"]))
    siblings = [sent, *(book.sibling(sent, order) for order in range(1, 4))]
    counts = {chat(client, prompt.text or "", 1)["usage"]["prompt_tokens"] for prompt in siblings}
    assert counts == {700}
    ids = book.ids_prompt("ids", 300, lambda text: tokens_of(client, text))
    answer = client.post("/v1/completions", json={"prompt": list(ids.token_ids or ()), "max_tokens": 1}).json()
    assert answer["usage"]["prompt_tokens"] == 300


def test_cold_is_cold_and_the_second_time_is_warm(client: httpx.Client) -> None:
    """A hybrid goes on from a checkpoint only: llama.cpp keeps one four tokens before the prompt's end."""

    def cached(text: str) -> int:
        return int(chat(client, text, 4)["usage"]["prompt_tokens_details"]["cached_tokens"])

    book = PromptBook(12)
    prompts = [book.counted_prompt(str(n), 512, lambda text: chat_tokens(client, text)) for n in range(6)]
    assert [cached(prompt.text or "") for prompt in prompts] == [0] * 6
    # More contexts than slots: the others come back from llama.cpp's cache in memory.
    assert [cached(prompt.text or "") for prompt in prompts] == [508] * 6
    assert cached(book.sibling(prompts[0]).text or "") == 0


def test_quick_suite_fits_a_slot(client: httpx.Client) -> None:
    prompt = PromptBook(13).counted_prompt("x", 2048, lambda text: chat_tokens(client, text))
    usage = chat(client, prompt.text or "", 128)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (2048, 128)


# --- start and stop


def test_key_is_asked_for_and_stays_out_of_sight(directory: Path) -> None:
    with running(directory=directory, threads=1, api_key=KEY, parallel=1, ctx=1024) as engine:
        body = {"prompt": "a", "max_tokens": 1}
        url = f"{engine.url}/v1/completions"
        assert httpx.post(url, json=body, trust_env=False).status_code == 401
        right = httpx.post(url, json=body, trust_env=False, headers={"Authorization": f"Bearer {KEY}"})
        assert right.status_code == 200
        assert KEY not in " ".join([*engine.command, *psutil.Process(engine.pid).cmdline()])
        assert KEY not in engine.last_words(1_000_000) and KEY[-4:] not in engine.last_words(1_000_000)


def test_stop_leaves_no_process(directory: Path) -> None:
    with running(directory=directory, threads=1) as one, running(directory=directory, threads=1) as two:
        assert one.url != two.url and one.is_running() and two.is_running()
        assert one.model_path == two.model_path
    assert is_gone(one.pid) and is_gone(two.pid)
    assert not one.is_running()
    one.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{one.url}/health", trust_env=False)


def test_an_engine_that_ignores_sigterm_is_killed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "TERMINATE_S", 0.5)
    engine = running(directory=directory, threads=1)
    os.kill(engine.pid, signal.SIGSTOP)
    engine.stop()
    assert is_gone(engine.pid)


def test_a_block_that_raises_stops_the_engine(directory: Path) -> None:
    with pytest.raises(ZeroDivisionError), running(directory=directory, threads=1) as engine:
        raise ZeroDivisionError
    assert is_gone(engine.pid)


@pytest.mark.parametrize("fork", [False, True])
def test_engine_ends_when_its_parent_is_killed(directory: Path, fork: bool) -> None:
    """Also where a fork of the parent lives on and holds the pipe open."""
    code = f"""
import os, pathlib, sys, time
from flatout.demo.start import running
engine = running(directory=pathlib.Path({str(directory)!r}), threads=1)
fork = os.fork() if {fork} else -1
if fork != 0:
    print(engine.pid, fork, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    forked = -1
    try:
        assert parent.stdout is not None
        pid, forked = map(int, parent.stdout.readline().split())
        assert not is_gone(pid)
        parent.kill()
        parent.wait(10)
        wait_for(lambda: is_gone(pid), "the engine's end")
    finally:
        parent.kill()
        parent.wait(10)
        if forked > 0:
            os.kill(forked, signal.SIGKILL)
        if parent.stdout is not None:
            parent.stdout.close()


def test_a_model_that_cannot_be_read_gives_the_engines_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    monkeypatch.setattr(start, "ensure_model", lambda directory: broken)
    with pytest.raises(EngineFailed, match="last words") as failure, running(threads=1, timeout_s=30):
        pass
    assert "broken.gguf" in str(failure.value)


def test_waiting_is_bounded(directory: Path) -> None:
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(EngineFailed, match=r"did not answer within 0 s"), running(directory=directory, timeout_s=0):
        pass
    assert {child.pid for child in psutil.Process().children()} <= before


def test_missing_packages_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "find_spec", lambda name: None if name == "xllamacpp" else object())
    with pytest.raises(EngineMissing, match=r"'xllamacpp'.*pip install 'flatout\[engine\]'"), running():
        pass
    with pytest.raises(ValueError, match="4 slots cannot share 2 tokens"):
        running(parallel=4, ctx=2)


def test_command_line_of_the_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = serve.parse(["--model", "m.gguf", "--port", "8009", "--parallel", "2", "--ctx", "4096", "--threads", "3"])
    assert (options.model, options.port, options.parallel) == (Path("m.gguf"), 8009, 2)
    assert (options.ctx, options.threads, options.parent) == (4096, 3, None)
    assert serve.main(["--model", str(tmp_path / "absent.gguf")]) == 1
    assert "there is no model file" in capsys.readouterr().err
