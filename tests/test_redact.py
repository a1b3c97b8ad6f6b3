"""Redaction: no planted secret survives, whatever carries it, and what is harmless stays as it was (faults.md U1)."""

from __future__ import annotations

import base64
import dataclasses
import json
import random
import re
import shlex
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from flatout.engines.redact import NOT_SECRET, Redactor, default, is_secret_name, shell_words, tidy

R = Redactor(home="/home/carol", user="carol", hosts=["carols-box.lan"])
GONE = "<redacted>"

# The launch command of the published page that started the project.
SEED_COMMAND = (
    '"$HOME/env_h200-z-lab-sglang/bin/sglang" serve --model-path Qwen/Qwen3.5-4B --served-model-name qwen '
    "--trust-remote-code --tp 1 --reasoning-parser qwen3 --tool-call-parser qwen3_coder --context-length 262144 "
    "--mem-fraction-static 0.856315 --enable-metrics --host 0.0.0.0 --port 8000 --api-key <redacted> "
    "--linear-attn-prefill-backend flashinfer --mamba-scheduler-strategy extra_buffer --max-running-requests 32 "
    "--cuda-graph-backend-prefill tc_piecewise --speculative-algorithm DFLASH "
    "--speculative-draft-model-path z-lab/Qwen3.5-4B-DFlash --speculative-dflash-block-size 8"
)


SECRET_NAMES = """
api_key admin_api_key ssl_keyfile_password hf_token authorization x-api-key cookie Set-Cookie HF_TOKEN OPENAI_API_KEY
FOO_KEY KEY AWS_SECRET_ACCESS_KEY apiKey --api-key --token --hf-token --password HUGGING_FACE_HUB_TOKEN client_secret
"""
OTHER_NAMES = """
max_tokens max_total_tokens eos_token tokenizer_path --tokenizer key token_usage cache_key ssl_keyfile --api-key-file
time_to_first_token num_key_value_heads inter_token_latency enable_prompt_tokens_details disable_radix_cache PATH
"""


@pytest.mark.parametrize(
    ("name", "secret"), [*((n, True) for n in SECRET_NAMES.split()), *((n, False) for n in OTHER_NAMES.split())]
)
def test_names(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


@pytest.mark.parametrize(
    ("given_command", "wanted"),
    [
        ("vllm serve M --api-key sk-x --port 8001", "vllm serve M --api-key <redacted> --port 8001"),
        ("vllm serve M --api-key=sk-x --port 8001", "vllm serve M --api-key=<redacted> --port 8001"),
        ("vllm serve M --api-key k1 k2 --port 80", "vllm serve M --api-key <redacted> <redacted> --port 80"),
        ("HF_TOKEN=abc  vllm serve M", "HF_TOKEN=<redacted>  vllm serve M"),
        ("sglang --api-key \\\r\n  plain --port 1", "sglang --api-key \\\r\n  <redacted> --port 1"),
        ("export MY_SECRET='a b' && run", "export MY_SECRET=<redacted> && run"),
        ("curl -k https://h.org/v1 -H 'Authorization: Bearer zz'", None),
        (
            "run -k zz --token yy --hf-token xx --password ww",
            "run -k <redacted> --token <redacted> --hf-token <redacted> --password <redacted>",
        ),
        (
            "docker run -e HF_TOKEN=xx -v /home/al/.cache:/root/.cache -p 80:80 img",
            "docker run -e HF_TOKEN=<redacted> -v $HOME/.cache:$HOME/.cache -p 80:80 img",
        ),
        ("bash -c \"serve --api-key 'X y' --port 1\"", "bash -c \"serve --api-key '<redacted>' --port 1\""),
        ('serve --api-key $API_KEY --token "${HF_TOKEN}"', 'serve --api-key $API_KEY --token "${HF_TOKEN}"'),
        ("serve \\\n  --api-key zz \\\n  --port 1", "serve \\\n  --api-key <redacted> \\\n  --port 1"),
        ("curl -u al:pw http://10.1.2.3:80/x", "curl -u <redacted> http://<address>:80/x"),
        ("docker run -u 1000:1000 img", "docker run -u 1000:1000 img"),
        (
            "serve --max-tokens 5 --tokenizer x --ssl-keyfile /k.pem",
            "serve --max-tokens 5 --tokenizer x --ssl-keyfile /k.pem",
        ),
        (r"C:\Users\John Smith\venv\python.exe serve --port 1", r"$HOME\venv\python.exe serve --port 1"),
        ("/Users/max/llama-server -m /root/m.gguf --host 0.0.0.0", "$HOME/llama-server -m $HOME/m.gguf --host 0.0.0.0"),
        ("CUDA_VISIBLE_DEVICES=GPU-8932f937-d72c-4106-c12f-20bd9faed9f6 x", "CUDA_VISIBLE_DEVICES=GPU-<redacted> x"),
    ],
)
def test_commands(given_command: str, wanted: str | None) -> None:
    wanted = wanted or "curl -k https://h.org/v1 -H 'Authorization: Bearer <redacted>'"
    assert R.command(given_command) == wanted
    assert R.command(wanted) == wanted


def test_the_published_command_is_left_alone() -> None:
    assert R.command(SEED_COMMAND) == SEED_COMMAND
    assert R.text(SEED_COMMAND) == SEED_COMMAND
    planted = SEED_COMMAND.replace(GONE, "sk-abc").replace("$HOME", "/home/someone")
    assert R.command(planted) == SEED_COMMAND
    assert R.argv(shlex.split(planted)) == shlex.split(SEED_COMMAND)


def test_server_info() -> None:
    info = {
        "api_key": "sk-test",
        "admin_api_key": None,
        "ssl_keyfile_password": "pw",
        "ssl_keyfile": None,
        "host": "127.0.0.1",
        "launch_command": "--model-path m --api-key sk-test --port 18404",
        "max_total_tokens": 65536,
        "version": "9.1.0.70",
        "internal_states": [{"api_key": "sk-test", "enable_metrics": True}],
        "dist_init_addr": "10.0.0.7:5000",
        "tokenizer_path": "/home/al/m",
        "enable_auth": True,
        "env": [{"name": "HF_TOKEN", "value": "abc"}, {"name": "TP", "value": "2"}],
        "args": ["--api-key", "sk-test", "--tp", "2"],
        "headers": [["X-Api-Key", "abc"]],
    }
    wanted = {
        **info,
        "api_key": GONE,
        "ssl_keyfile_password": GONE,
        "launch_command": "--model-path m --api-key <redacted> --port 18404",
        "internal_states": [{"api_key": GONE, "enable_metrics": True}],
        "dist_init_addr": "<address>:5000",
        "tokenizer_path": "$HOME/m",
        "env": [{"name": "HF_TOKEN", "value": GONE}, {"name": "TP", "value": "2"}],
        "args": ["--api-key", GONE, "--tp", "2"],
        "headers": [["X-Api-Key", GONE]],
    }
    assert R.tree(info) == wanted
    as_text = json.loads(R.text(json.dumps(info, indent=1)))
    assert as_text == wanted


def test_log_probabilities_are_text() -> None:
    body = '{"token":"hello","bytes":[104],"logprob":-0.1}'
    assert R.text(body) == body
    assert R.tree(json.loads(body)) == json.loads(body)


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("http://al:pw@example.org:80/v1?x=1", "http://<redacted>@example.org:80/v1?x=1"),
        ("redis://:p/w#x@10.0.0.1:6379/0?token=ab&x=1", "redis://<redacted>@<address>:6379/0?token=<redacted>&x=1"),
        ("https://api.openai.com/v1", "https://api.openai.com/v1"),
        ("http://localhost:8000/v1", "http://localhost:8000/v1"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://[fd00::2]:8000/", "http://<address>:8000/"),
        ("http://carols-box.lan:1/", "http://<host>:1/"),
        ("http://CAROLS-BOX:1/", "http://<host>:1/"),
        (
            "https://x.org/a?key=k&sig=s&model=m#access_token=t",
            "https://x.org/a?key=<redacted>&sig=<redacted>&model=m#access_token=<redacted>",
        ),
        ("https://x.org/a?next=http%3A%2F%2Fu%3Apw%40h.org", "https://x.org/a?next=<redacted>"),
        ("al:pw@x.org/v1", "<redacted>@x.org/v1"),
    ],
)
def test_urls(url: str, wanted: str) -> None:
    assert R.url(url) == wanted
    assert R.url(wanted) == wanted
    if "://" in url:
        assert R.text(f"got {url} back") == f"got {wanted} back" or "#" in url


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("sglang 0.5.6.1 on 10.1.2.3", "sglang 0.5.6.1 on <address>"),
        (
            "cudnn 9.1.0.70, nvidia-cudnn-cu12==9.1.0.70, v1.2.3.4",
            "cudnn 9.1.0.70, nvidia-cudnn-cu12==9.1.0.70, v1.2.3.4",
        ),
        ("driver: 8.8.8.8:53 or 8.8.8.8.post1", "driver: <address>:53 or 8.8.8.8.post1"),
        ("10.0.0.5-10.0.0.9 and node-10.0.0.5", "<address>-<address> and node-<address>"),
        ("127.0.0.1 127.3.4.5 0.0.0.0 ::1 ::", "127.0.0.1 127.3.4.5 0.0.0.0 ::1 ::"),
        ("fe80::1%eth0 fd00::2: refused; 12:34:56 std::vector", "<address> <address>: refused; 12:34:56 std::vector"),
        ("aa:bb:cc:dd:ee:ff", "<address>"),
        ("300.1.2.3 1.2.3 1.2.3.4.5", "300.1.2.3 1.2.3 1.2.3.4.5"),
        ("mail al@example.org; git@github.com:x/y", "mail <email>; git@github.com:x/y"),
        (
            "carol ran /tmp/pytest-of-carol/x on carols-box; carolina",
            "<user> ran /tmp/pytest-of-<user>/x on <host>; carolina",
        ),
        ("-I/home/al/inc https://x.co/home/al file:///home/al/m", "-I$HOME/inc https://x.co/home/al file://$HOME/m"),
        ("/rootfs /root-x /root/x /home/$USER", "/rootfs /root-x $HOME/x /home/$USER"),
        ("argument --api-key: expected one argument", "argument --api-key: expected one argument"),
        ("use --api-key to set it", "use --api-key to set it"),
        (
            "ran vllm serve M --api-key k1 k2 k3 --tp 2",
            "ran vllm serve M --api-key <redacted> <redacted> <redacted> --tp 2",
        ),
        ("Incorrect API key provided: sk-ab12****. Bye", "Incorrect API key provided: <redacted>. Bye"),
        ("Args(api_key='x y', api_keys=None, port=1)", "Args(api_key='<redacted>', api_keys=None, port=1)"),
        ("{'api_key': ['a', 'b'], 'port': 1}", "{'api_key': '<redacted>', 'port': 1}"),
        ("Cookie: a=b; c=d\nHost: x.org", "Cookie: <redacted>\nHost: x.org"),
        ("unexpected token: '}' at 3", "unexpected token: '}' at 3"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY----- x", "<redacted> x"),
    ],
)
def test_text(text: str, wanted: str) -> None:
    assert R.text(text) == wanted
    assert R.text(wanted) == wanted


KEYS = """
sk-proj-abcdefghij0123456789 hf_abcdefghijklmnopqrstuvwxyz ghp_0123456789abcdefghij0123456789abcdef AKIAIOSFODNN7EXAMPLE
eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc_DEF-1 nvapi-0123456789abcdefghij xoxb-1234567890-abcdef
glpat-0123456789abcdefghij github_pat_0123456789abcdefghij_0
"""


@pytest.mark.parametrize("key", KEYS.split())
@pytest.mark.parametrize("around", ["{}", "key {}.", '"{}"', "x={}&y", "({})"])
def test_shapes(key: str, around: str) -> None:
    assert R.text(around.format(key)) == around.format(GONE)


def test_words_that_only_look_like_keys_stay() -> None:
    for text in ("hf_chat_template_name", "sk-test", "task-1234567890123", "tokens-per-second", "max_tokens=5"):
        assert R.text(text) == text


def test_short_and_conventional_secrets_do_not_eat_text() -> None:
    redactor = Redactor(secrets=["x", "EMPTY", "token"], home="", user="", hosts=[])
    assert redactor.text("8 x H200, EMPTY tokens") == "8 x H200, EMPTY tokens"
    assert redactor.command("serve --api-key EMPTY") == "serve --api-key <redacted>"
    assert redactor.text("x") == GONE


KEY_CHARS = "abcdefgXYZ0123456789-_/+"


@given(
    st.text(alphabet=KEY_CHARS, min_size=12, max_size=80).map(lambda s: "k7" + s),
    st.integers(6, 200),
    st.sampled_from(["", "a bad key ", '{"error": "key=', "Bearer ", "x" * 50 + " "]),
    st.sampled_from(["", " ", "…", "...", '"', '"}', "'.", '…"', " … and so on", "...: try again", '"…']),
)
def test_the_beginning_of_a_known_secret_does_not_survive_a_cut(secret: str, cut: int, before: str, after: str) -> None:
    cut = min(cut, len(secret))
    shown = Redactor([f"Bearer {secret}", secret], home="", user="", hosts=[]).text(before + secret[:cut] + after)
    assert secret[:cut] not in shown and secret[:6] not in shown
    assert GONE in shown


@given(st.text(alphabet=KEY_CHARS, min_size=7, max_size=60), st.text(max_size=60), st.integers(0, 60))
def test_masking_at_a_cut_is_idempotent(secret: str, noise: str, cut: int) -> None:
    redactor = Redactor([secret], home="", user="", hosts=[])
    for text in (noise + secret[:cut], f"{noise}{secret[:cut]}…{noise}", f"<redacted>{secret[:cut]}"):
        once = redactor.text(text)
        assert redactor.text(once) == once


@pytest.mark.parametrize(
    "text",
    ["the engine is sglang", "flatout", "a wrong password", "the secret", "the API wants a Bearer", "sglang-server"],
)
def test_words_that_a_secret_begins_with_stay(text: str) -> None:
    keys = ["sglang-1234", "flatout-key-7", "password-123456", "secret-abcdef1", "Bearer abcdef12345", "sglang-server9"]
    assert Redactor(keys, home="", user="", hosts=[]).text(text) == text


def test_numbers_are_not_taken_for_the_beginning_of_a_secret() -> None:
    made = Redactor(["123456789012345"], home="", user="", hosts=[]).tree({"t_ns": 1234567, "share": 0.1234567})
    assert made == {"t_ns": 1234567, "share": 0.1234567}


def test_tidy_redacts_before_it_cuts() -> None:
    key = "kA9-" + "0123456789abcdef" * 4
    redact = Redactor([key], home="", user="", hosts=[]).text
    for pad in range(0, 400, 7):
        shown = tidy(f"{'x' * pad}\n\x1b[31m{key} tail {'y' * 300}", redact, 300)
        assert len(shown) <= 300 and shown.isprintable() and key[:6] not in shown
    many = tidy(f"{key} " * 60, redact, 300)
    assert key[:6] not in many and many.startswith(GONE)
    assert tidy("plain words", redact) == "plain words"


def test_odd_objects() -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no")

    @dataclasses.dataclass
    class Args:
        api_key: str
        port: int

    cycle: dict[str, Any] = {"a": 1}
    cycle["self"] = cycle
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert R.tree(Args("k", 1)) == {"api_key": GONE, "port": 1}
    assert R.tree(cycle) == {"a": 1, "self": GONE}
    assert GONE in json.dumps(R.tree(deep))
    assert R.tree({"p": PurePosixPath("/home/al/x"), "b": b"\xff", 3: {1, 2}, "x": Broken()})["p"] == "$HOME/x"
    assert R.tree({"sk-abcdefghij0123456789": 1, "sk-abcdefghij0123456788": 2}) == {GONE: 1, f"{GONE} (2)": 2}
    assert R.text("[" * 20_000).startswith("[[")
    assert default().text("plain") == "plain"


# --- properties ---------------------------------------------------------------------------------------------------

_TEMPLATE_TEXT = (
    "run --api-key --port serve vllm Authorization Bearer http://localhost:8000/v1?model=m model password HF_TOKEN "
    "name value admin_api_key hf_token X-Api-Key cookie sid clientSecret launch_command headers error body"
)
_ANY = st.characters(exclude_categories=["Cs"])
SECRETS = st.text(_ANY, min_size=6, max_size=24).filter(
    lambda s: (
        s.strip() == s and not s.startswith("-") and s not in GONE and s not in _TEMPLATE_TEXT and "redacted" not in s
    )
)
# What a key can be made of where nothing quotes it.
BARE = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.~+/-", min_size=8, max_size=40).filter(
    lambda s: s[0].isalnum() and s not in _TEMPLATE_TEXT
)
NAMES = st.sampled_from(
    ["api_key", "admin_api_key", "hf_token", "password", "Authorization", "X-Api-Key", "cookie", "clientSecret"]
)
FLAGS = st.sampled_from(["--api-key", "--token", "--hf-token", "--password", "--admin-api-key", "-k"])
VARIABLES = st.sampled_from(["HF_TOKEN", "OPENAI_API_KEY", "MY_KEY", "DB_SECRET", "DB_PASSWORD"])


@given(SECRETS, FLAGS, st.booleans())
@example("//0000", "-k", True)
def test_no_secret_survives_in_argv(secret: str, flag: str, joined: bool) -> None:
    assume(not (flag == "-k" and "://" in secret))
    argv = ["run", "--port", "1", *([f"{flag}={secret}"] if joined else [flag, secret]), "--tp", "2"]
    clean = R.argv(argv)
    assert not any(secret in word for word in clean)
    assert clean[:3] == ["run", "--port", "1"] and clean[-2:] == ["--tp", "2"]
    assert R.argv(clean) == clean


@example("//0000", "-k", "HF_TOKEN", "{flag}={q}")
@example("//0000", "-k", "HF_TOKEN", "--env={var}={q}")
@given(
    SECRETS,
    FLAGS,
    VARIABLES,
    st.sampled_from(["{flag} {q}", "{flag}={q}", "{var}={q} run", "-e {var}={q}", "--env={var}={q}"]),
)
def test_no_secret_survives_in_a_command(secret: str, flag: str, variable: str, shape: str) -> None:
    assume(not (flag == "-k" and "://" in secret))
    command = "run " + shape.format(flag=flag, var=variable, q=shlex.quote(secret)) + " --port 8000"
    clean = R.command(command)
    assert secret not in clean
    assert clean.startswith("run ") and clean.endswith(" --port 8000")
    assert R.command(clean) == clean


@given(
    SECRETS, st.sampled_from(["Authorization: Bearer ", "Authorization: ", "X-Api-Key: ", "Cookie: sid=", "api-key: "])
)
def test_no_secret_survives_in_a_header(secret: str, head: str) -> None:
    clean = R.command(f"curl -H {shlex.quote(head + secret)} http://localhost:80/v1")
    assert secret not in clean
    assert clean.startswith("curl -H ") and clean.endswith(" http://localhost:80/v1")
    assert R.tree({"headers": {head.split(":")[0]: secret}}) == {"headers": {head.split(":")[0]: GONE}}


@given(SECRETS, NAMES, st.integers(0, 3))
def test_no_secret_survives_in_json(secret: str, name: str, nested: int) -> None:
    value: Any = {"model": "m", name: secret, "n": 1, "name": "x"}
    body = json.dumps(value, ensure_ascii=nested % 2 == 0)
    for _ in range(nested):
        body = json.dumps({"body": body, "n": 1})
    found = R.text(f"error: {body}") + R.text(body)
    assert secret not in found
    assert json.dumps(secret)[1:-1] not in found
    assert '"n": 1' in found or '\\"n\\": 1' in found
    assert secret not in json.dumps(R.tree({"body": body, "list": [value, (value,)]}), ensure_ascii=False)


@given(SECRETS, NAMES)
def test_no_secret_survives_in_python_reprs(secret: str, name: str) -> None:
    shown = (
        repr({name: secret, "port": 1})
        + repr([f"--{name}", secret])
        + f"Args({name.replace('-', '_')}={secret!r}, port=1)"
    )
    clean = R.text(shown)
    assert secret not in clean and repr(secret)[1:-1] not in clean
    assert clean.count("port") == 2


@given(
    BARE,
    NAMES,
    st.sampled_from(["{n}={s}", "{n}: {s}", "--{n} {s}", "--{n}={s}", "?a=1&{n}={s}&b=2", "x {n}={s}, y", "({n}={s})"]),
)
def test_no_bare_secret_survives_in_text(secret: str, name: str, shape: str) -> None:
    clean = R.text("log " + shape.format(n=name, s=secret) + "\nnext line")
    assert secret not in clean
    assert clean.startswith("log ") and clean.endswith("\nnext line")


@given(SECRETS, st.booleans())
def test_no_secret_survives_in_a_url(secret: str, in_query: bool) -> None:
    coded = quote(secret, safe="")
    url = (
        f"https://x.org:8000/v1?model=m&api_key={coded}&n=1"
        if in_query
        else f"https://al:{coded}@x.org:8000/v1?model=m"
    )
    for clean in (R.url(url), R.text(f"see {url} now"), R.command(f"curl '{url}'"), R.tree({"u": url})["u"]):
        assert coded not in clean and secret not in clean
        assert "x.org:8000/v1?model=m" in clean


@given(
    st.text(min_size=4, max_size=24).filter(lambda s: s.strip() == s and "redacted" not in s),
    st.text(max_size=20),
    st.text(max_size=20),
)
@example("a'b\"c\\d&e", "", "")
@example("acte", "x<redacted>", "acte")
def test_a_known_secret_survives_in_no_form(secret: str, before: str, after: str) -> None:
    assume(secret not in GONE and secret.lower() not in NOT_SECRET)
    redactor = Redactor(secrets=[secret], home="/home/carol", user="carol", hosts=[])
    raw = secret.encode("utf-8", "surrogatepass")
    forms = [secret, json.dumps(secret)[1:-1], json.dumps(json.dumps(secret)[1:-1])[1:-1], quote(raw), quote_plus(raw)]
    forms += (
        [quote(raw, safe=""), re.sub(r"%..", lambda m: m[0].lower(), quote(raw, safe=""))]
        if raw.isascii()
        else [quote(raw, safe="")]
    )
    for form in forms:
        for place in (before + form + after, f'{{"note": "{form}"}}'):
            clean = redactor.text(place)
            assert form not in clean
            assert redactor.text(clean) == clean
    for pad in (b"", b"u", b"us", b"user:") if len(raw) >= 6 else ():
        for coded in (base64.b64encode(pad + raw).decode(), base64.urlsafe_b64encode(pad + raw + b"!tail").decode()):
            kept = redactor.text(f"Basic {coded} end").removeprefix("Basic ").removesuffix(" end")
            assert len(kept.replace(GONE, "")) < len(coded) - len(secret)
    clean_tree = redactor.tree([{"a": before + secret, secret: 1}, [secret]])
    assert all(secret not in text for text in [*clean_tree[0], clean_tree[0]["a"], *clean_tree[1]])
    assert secret not in redactor.command(f"run {shlex.quote(before + secret)}")


PIECES = r"""
--api-key --token= HF_TOKEN= Authorization: ' " \ = : { } [ ] http:// @ / ? & # , ; ( ) . - -- -k a 0 "api_key":
10.1.2.3 ::1 fd00::2 1.2.3.4.5 /home/al /root $HOME C:\Users\al al@x.org carol carols-box sk-abcdefghij0123456789
<redacted> <address> $KEY ${K} Cookie: %3D eyJ vllm token
"""
_PIECES = st.sampled_from([*PIECES.split(), "Bearer ", " ", "\n", "API key", "-----BEGIN PRIVATE KEY-----"])
NOISE = st.one_of(st.text(max_size=60), st.lists(_PIECES, max_size=14).map("".join))


@settings(max_examples=400)
@given(NOISE)
def test_idempotent_and_never_raises_on_text(noise: str) -> None:
    for apply in (R.text, R.command, R.url):
        once = apply(noise)
        assert apply(once) == once
    words = noise.split(" ")
    once_argv = R.argv(words)
    assert len(once_argv) == len(words) and R.argv(once_argv) == once_argv
    assert isinstance(shell_words(noise), list)


_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), NOISE, st.binary(max_size=8))
TREES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.one_of(NOISE, NAMES, st.integers()), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=200)
@given(TREES)
def test_idempotent_and_never_raises_on_trees(tree: Any) -> None:
    once = R.tree(tree)
    assert repr(R.tree(once)) == repr(once)


@settings(max_examples=200)
@given(TREES, BARE, st.sampled_from(["api_key", "hf_token", "password"]), st.randoms(use_true_random=False))
def test_no_secret_survives_anywhere_in_a_tree(tree: Any, secret: str, name: str, rng: random.Random) -> None:
    assume(secret not in repr(tree))
    carriers: list[Any] = [
        {name: secret},
        {"name": name, "value": secret},
        [name, secret],
        ["run", f"--{name}", secret],
        f"{name}={secret}",
        json.dumps({name: secret}),
        {"launch_command": f"serve --{name} {secret}"},
        [{"x": {name: [secret, secret]}}],
    ]
    planted = {"a": tree, "b": [tree, rng.choice(carriers), {"c": rng.choice(carriers)}]}
    assert secret not in repr(R.tree(planted))


HARMLESS = """
--port 8000 | --max-model-len 4096 | --tokenizer Qwen/Qwen3.5-4B | --max-num-batched-tokens 8192 | --tp 2 | -np 4
| --ssl-keyfile /etc/k.pem | --host 0.0.0.0 | --host ::1 | --served-model-name 'my model' | --kv-cache-dtype fp8
| --enable-prompt-tokens-details | --hf-overrides '{"max_tokens": 5, "rope": [1, 2]}' | --api-key-file k.txt | --seed=1
| --chat-template "$HOME/t.jinja" | OMP_NUM_THREADS=8 | --speculative-num-draft-tokens 4 | -c 16384
"""
WORDS = st.sampled_from([*(part.strip() for part in HARMLESS.split("|")), "2>&1 | tee log"])


@given(st.lists(WORDS, max_size=8), st.sampled_from([" ", "  ", " \\\n  "]))
def test_harmless_commands_are_not_touched(parts: list[str], gap: str) -> None:
    command = gap.join(["vllm serve Qwen/Qwen3.5-4B", *parts])
    assert R.command(command) == command
    assert R.text(command) == command
    assert R.argv(shlex.split(command)) == shlex.split(command)
