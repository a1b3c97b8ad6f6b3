"""URLs, keys, headers and proxies as users give them."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.engines.base import TargetError
from flatout.engines.endpoint import Address, find_proxy, key_from_environment, parse_address
from flatout.net import is_loopback


def parsed(url: str, **kwargs: object) -> Address:
    return parse_address(url, environ={}, **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "scheme", "host", "port", "base", "root"),
    [
        ("http://host", "http", "host", 80, "/v1", ""),
        ("host:8000", "http", "host", 8000, "/v1", ""),
        ("http://localhost:8000/", "http", "localhost", 8000, "/v1", ""),
        ("http://host:8000/v1/", "http", "host", 8000, "/v1", ""),
        ("https://host/v1", "https", "host", 443, "/v1", ""),
        ("http://host:8000/proxy/v1", "http", "host", 8000, "/proxy/v1", "/proxy"),
        ("http://host:8000//proxy//v1", "http", "host", 8000, "/proxy/v1", "/proxy"),
        ("http://host:8000/proxy", "http", "host", 8000, "/proxy", "/proxy"),
        ("http://h:1/v1/chat/completions", "http", "h", 1, "/v1", ""),
        ("http://h:1/v1/models", "http", "h", 1, "/v1", ""),
        ("http://[::1]:8000/v1", "http", "::1", 8000, "/v1", ""),
        ("  http://h:1  ", "http", "h", 1, "/v1", ""),
        ("HTTP://Host:1", "http", "host", 1, "/v1", ""),
    ],
)
def test_urls(url: str, scheme: str, host: str, port: int, base: str, root: str) -> None:
    a = parsed(url)
    assert (a.scheme, a.host, a.port, a.base_path, a.root_path) == (scheme, host, port, base, root)


def test_an_ipv6_origin_has_its_brackets() -> None:
    assert parsed("http://[::1]:8000").url == "http://[::1]:8000/v1"


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("ftp://host", "not an http://"),
        ("http://", "names no host"),
        ("", "names no host"),
        ("http://host:port", "no number"),
        ("http://host:99999", "no number"),
        ("http://host:0", "port 0"),
        ("http://ho st", "host name"),
        ("http://[::zz]", "not a URL"),
        ("http://host/v1?key=1", "no place"),
        ("http://host/v 1", "path"),
    ],
)
def test_bad_urls_are_explained(url: str, part: str) -> None:
    with pytest.raises(TargetError, match=part) as caught:
        parsed(url)
    assert caught.value.kind == "not_a_server"


def test_a_key_becomes_a_bearer_and_is_not_shown() -> None:
    a = parsed("http://h", key=" sk-secret-1 ", headers=[("X-Team", "blue")])
    assert a.headers == (("Authorization", "Bearer sk-secret-1"), ("X-Team", "blue"))
    assert "sk-secret-1" not in repr(a)


def test_a_login_in_the_url_becomes_basic_and_is_not_shown_in_errors() -> None:
    a = parsed("http://bob:p%40ss@h:1")
    assert a.headers == (("Authorization", "Basic " + base64.b64encode(b"bob:p@ss").decode()),)
    assert a.url == "http://h:1/v1"
    with pytest.raises(TargetError) as caught:
        parsed("gopher://bob:hunter22@h")
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    ("kwargs", "part"),
    [
        ({"key": "sk\nx"}, "cannot carry"),
        ({"key": "clé"}, "cannot carry"),
        ({"headers": [("bad name", "x")]}, "not a header name"),
        ({"headers": [("Host", "x")]}, "flatout's own"),
        ({"headers": [("Authorization", "x")], "key": "k"}, "give one"),
        ({"ca_file": "/no/such/file.pem"}, "no such file"),
    ],
)
def test_bad_keys_headers_and_files(kwargs: dict[str, object], part: str) -> None:
    with pytest.raises(TargetError, match=part):
        parsed("http://h", **kwargs)


@pytest.mark.parametrize(
    ("url", "base", "sent"),
    [
        ("https://api.openai.com/v1", None, True),
        ("https://API.OpenAI.com:443", None, True),
        ("https://api.openai.com./v1", None, True),
        ("http://api.openai.com", None, False),  # in the clear
        ("https://api.openai.com:8443", None, False),
        ("https://eu.api.openai.com", None, False),
        ("https://api.openai.com.evil.example", None, False),
        ("https://evil.example/api.openai.com", None, False),
        ("https://api.openai.com@evil.example", None, False),
        ("http://127.0.0.1:8000", None, False),
        ("localhost:8000", None, False),
        (None, None, False),
        ("", None, False),
        ("not a url", None, False),
        ("https://gw.example/v1", "https://gw.example/openai/v1", True),
        ("https://gw.example:8443/v1", "https://gw.example/v1", False),
        ("http://gw.example/v1", "https://gw.example/v1", False),
        ("http://localhost:8000", "http://localhost:8000/v1", True),
        ("localhost:8000", "localhost:8000", True),
        ("http://127.0.0.1:9000", "http://127.0.0.1:8000/v1", False),
        ("not a url", "not a url", False),
        ("", "", False),
        ("https://api.openai.com", "https://gw.example", True),
    ],
)
def test_the_openai_key_goes_to_openai_only(url: str | None, base: str | None, sent: bool) -> None:
    environ = {"OPENAI_API_KEY": "sk-1"} | ({} if base is None else {"OPENAI_BASE_URL": base})
    assert key_from_environment(url, environ) == (("sk-1", "OPENAI_API_KEY") if sent else (None, None))
    assert key_from_environment(url, environ | {"FLATOUT_API_KEY": " k "}) == ("k", "FLATOUT_API_KEY")
    assert key_from_environment(url, {**environ, "OPENAI_API_KEY": " ", "FLATOUT_API_KEY": ""}) == (None, None)


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_odd_url_gets_the_openai_key(url: str, base: str) -> None:
    key, name = key_from_environment(url, {"OPENAI_API_KEY": "sk-1", "OPENAI_BASE_URL": base})
    assert (key is None) == (name is None)
    if key is not None:
        assert parse_address(url, environ={}).origin.lower() == parse_address(base, environ={}).origin.lower()


def test_an_authorization_header_of_the_users_own_is_kept() -> None:
    assert parsed("http://u:p@h", headers=[("authorization", "Token 1")]).headers == (("authorization", "Token 1"),)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "127.0.0.1", "127.9.9.9", "::1", "a.localhost"])
def test_loopback_never_uses_a_proxy(host: str) -> None:
    assert is_loopback(host)
    assert find_proxy("http", host, 80, {"http_proxy": "http://p:1", "all_proxy": "http://p:1"}) is None


@pytest.mark.parametrize(
    ("no_proxy", "excluded"),
    [
        ("*", True),
        ("gpu.example", True),
        (".example", True),
        ("*.example", True),
        ("gpu.example:8000", True),
        ("gpu.example:9000", False),
        ("other.example", False),
        ("pu.example", False),
        ("", False),
    ],
)
def test_no_proxy(no_proxy: str, excluded: bool) -> None:
    environ = {"http_proxy": "http://user:pw@p.example:3128", "no_proxy": no_proxy}
    proxy = find_proxy("http", "gpu.example", 8000, environ)
    assert (proxy is None) == excluded
    if proxy is not None:
        assert (proxy.host, proxy.port) == ("p.example", 3128)
        assert proxy.authorization == "Basic " + base64.b64encode(b"user:pw").decode()
        assert "Basic" not in repr(proxy)


def test_no_proxy_takes_networks() -> None:
    environ = {"http_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}
    assert find_proxy("http", "10.1.2.3", 80, environ) is None
    assert find_proxy("http", "11.1.2.3", 80, environ) is not None


def test_proxies_by_scheme() -> None:
    environ = {"HTTP_PROXY": "http://cgi:1", "https_proxy": "s:2"}
    assert find_proxy("http", "h", 80, environ) is None  # as curl: only lower case, upper case may come from a request
    proxy = find_proxy("https", "h", 443, environ)
    assert proxy is not None and (proxy.host, proxy.port) == ("s", 2)


@pytest.mark.parametrize("value", ["socks5://p:1", "https://p:1", "http://:1"])
def test_other_kinds_of_proxy_are_refused_with_the_variable_named(value: str) -> None:
    with pytest.raises(TargetError, match="all_proxy"):
        find_proxy("http", "h", 80, {"all_proxy": value})


@given(st.text(max_size=60), st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_any_input_gives_an_address_or_one_clear_error(url: str, key: str, name: str, no_proxy: str) -> None:
    environ = {"http_proxy": "http://p:1", "no_proxy": no_proxy}
    try:
        a = parse_address(url, key=key, headers=[(name, "v")], environ=environ)
    except TargetError as error:
        assert str(error) and "\n" not in str(error).strip()
    else:
        assert 0 < a.port < 65536 and a.base_path.startswith("/") and a.host


@given(st.from_regex(r"https?://[a-z0-9.\[\]:@%-]{0,20}(/[ -~]{0,20})?", fullmatch=True))
def test_urls_that_nearly_are(url: str) -> None:
    try:
        a = parsed(url)
    except TargetError as error:
        assert error.kind == "not_a_server"
    else:
        assert " " not in a.url
