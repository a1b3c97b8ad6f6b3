"""Secrets and personal details taken out of everything that is written, shown or logged.

By structure first (flags, variables, headers, keys of JSON, URLs), then by shape (keys of well-known services), then
by what is personal (home folders, user and host names, e-mail and network addresses). Secrets become `<redacted>`,
the rest a word that says what stood there; everything harmless stays exactly as it was. Each function may be applied
again to its own answer without changing it, and none raises, whatever it is given.
"""

from __future__ import annotations

import base64
import dataclasses
import getpass
import html
import ipaddress
import json
import re
import shlex
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote, quote_plus, unquote_plus

from flatout.protocol import shorten

PLACEHOLDER = "<redacted>"
ADDRESS = "<address>"
USER = "<user>"
HOST = "<host>"
EMAIL = "<email>"
HOME = "$HOME"


def word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_PASSES = 8
_DEEPEST = 64
_LARGEST_JSON = 2_000_000

# Names of accounts and machines that tell nothing about a person, or are words of the trade that must stay readable.
_COMMON_NAMES = word_set(
    "root user users admin administrator ubuntu debian fedora centos arch ec2-user azureuser vagrant docker runner "
    "jenkins nobody guest test demo home work data model models server servers service default max min auto main "
    "vllm sglang llama ollama llamacpp qwen gemma mistral deepseek openai python node localhost localdomain local host "
    "hostname app api web gpu cpu cuda linux windows macos vm box container computer desktop laptop"
)
_PRIVATE_DOMAINS = (".lan", ".local", ".internal", ".home", ".corp", ".intranet", ".localdomain", ".arpa", ".ts.net")

_NAMED = re.compile(
    r"(?<![\w.-])(-{0,2}[A-Za-z_][\w.-]{0,79})(\\*[\"'])?"
    r"\s{0,8}(?:=>|=(?!=)|:(?!//|:))[ \t]{0,40}(?:\r?\n[ \t]{1,80}(?=[\"'\[]))?"
)
_FLAG = re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]{0,79})(?:\s{0,8}\\\r?\n\s{0,40}|[ \t]{1,40}|\\*[\"']\s{0,4},\s{0,8})")
_FLAG_WORD = re.compile(r"--?[A-Za-z][\w.-]{0,79}")
_LOGPROB = re.compile(r"\\*\"\s{0,8},\s{0,8}\\*\"(?:bytes|logprob|token_id)\\*\"")
_SPOKEN = re.compile(
    r"(?i)(?<!\w)(?:api[ _-]?key|(?:access|auth|api|bearer|secret)[ _-]token|secret[ _-]key)"
    r"(?: provided| given| is| was| used)?[:=]?[ \t]{1,4}(?=[^\s,;]{0,200}[\d*_-])(?!--|-\w(?:\s|$))"
)
_NOT_A_VALUE = re.compile(
    r"(?i)(?:--|(?:-[a-z]|to|or|and|is|for|with|in|was|the|a|an|of|flag|option|argument|must|requires|if|are)(?=\s|$))"
)
_PROSE_TOKEN = re.compile(r"(?i)(?:unexpected|unknown|invalid|special|illegal|bad|eos|bos|next|first|last|per) $")
_WORD = re.compile(r"(-{0,2}[A-Za-z_][\w.-]{0,79})(=|\s{0,8}:\s{0,8}(?!//))(?=\S)", re.DOTALL)
_URL = re.compile(
    r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]{1,20}://)((?:<(?:redacted|address|host|user|email)>|[^\s\"'<>\\`])+)"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,20}://")
_LOOSE_LOGIN = re.compile(r"[^/@\s:]{0,200}:[^/\s]{1,400}@(?=[^\s/@]|$)")

_NAME_CHARS = r"[^/\\\s\"'`:;,|<>&(){}\[\]$*?=]+"
_START = r"(?:(?<![\w.~$}\]%-])(?<!:/)|(?<=[\s\"'=]-[A-Za-z])|(?<=^-[A-Za-z]))"
_HOMES = re.compile(
    rf"{_START}(?:/(?:mnt|var|usr|export|data|nfs|[a-z]))?/(?:home|Users)/{_NAME_CHARS}"
    rf"|{_START}/root(?![\w.-])"
    rf"|(?<![A-Za-z])[A-Za-z]:(?:\\+|/)Users(?:\\+|/)(?:\w[\w.-]*(?: [\w.-]+){{1,2}}(?=\\)|{_NAME_CHARS})"
)
_EMAIL = re.compile(
    r"(?<![\w.%+-])(?!git@)[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-]|\.\w)"
)


def _own(ask: Callable[[], object]) -> str:
    try:
        return str(ask())
    except Exception:  # no home, no user entry, no host name: then there is none to hide
        return ""


class Redactor:
    """Takes out `secrets` wherever and however encoded they appear, and everything that looks like a secret.

    `secrets`: exact values known to be secret (the API key in use). `home`, `user`, `hosts`: this machine's own where
    None; an empty value leaves that rule out. Paths under other people's home folders are shortened all the same.
    """

    def __init__(
        self,
        secrets: Iterable[str] = (),
        home: str | None = None,
        user: str | None = None,
        hosts: Iterable[str] | None = None,
    ) -> None:
        self._secrets = frozenset(secret for secret in secrets if secret)
        self._known = known_secrets_pattern(self._secrets)
        self._beginnings = beginnings_of(self._secrets)
        home = _own(Path.home) if home is None else home
        user = _own(getpass.getuser) if user is None else user
        hosts = [_own(socket.gethostname)] if hosts is None else list(hosts)
        named = {*hosts, *(name.partition(".")[0] for name in hosts)}
        home = home.rstrip("/\\")
        self._home = re.compile(rf"(?<![\w.-]){re.escape(home)}(?![\w.-])") if len(home) > 3 else None
        self._user = _names_pattern([user], "A-Za-z0-9")
        self._hosts = _names_pattern(named, r"\w\-")
        self._host_names = frozenset(name.lower() for name in named if name)

    def text(self, text: str) -> str:
        """Any text: a log line, an error body, JSON. `bytes` are read as UTF-8; other objects by `str()`."""
        return self._text(text, 0, version=False)

    def argv(self, argv: Sequence[str]) -> list[str]:
        """The arguments of a process, already split. An argument stays one argument."""
        plain = [word if isinstance(word, str) else as_text(word) for word in argv]
        return [self.text(word) for word in _mask_words(plain, [False] * len(plain))]

    def command(self, command: str) -> str:
        """A shell command line; quotes, spacing and line breaks stay. `$API_KEY` is no secret and stays too."""
        return _settled(lambda line: self.text(self._command_once(line)), as_text(command))

    def url(self, url: str) -> str:
        """One URL: user and password, secret parameters, and the host where it is an address or this machine."""
        return _settled(lambda text: self.text(self._url_once(text)), as_text(url))

    def tree(self, value: Any) -> Any:
        """A copy of a JSON-like value: by key names, name/value pairs, argument lists, and `text` for each string.

        Null, true, false and empty values of secret keys stay. Dataclasses and pydantic models become dicts; what is
        not JSON becomes its redacted `str()`. A value inside itself, or deeper than 64 levels, is replaced.
        """
        return self._tree(value, "", 0, ())

    # --- text -----------------------------------------------------------------------------------------------------

    def _text(self, value: object, depth: int, *, version: bool) -> str:
        return _settled(lambda text: self._json(self._once(text, depth, version), depth), as_text(value))

    def _once(self, text: str, depth: int, version: bool) -> str:
        if text in self._secrets:
            return PLACEHOLDER
        text = mask_shapes(self._mask_known(text))
        text = _URL.sub(lambda m: m[1] + self._url_rest(m[2], depth), text)
        text = _mask_named(text)
        text = mask_more_keys(_mask_after(_FLAG, text, _takes_value))
        text = _mask_after(_SPOKEN, text, lambda _text, _match: True)
        if self._home:
            text = self._home.sub(lambda _: HOME, text)
        text = _HOMES.sub(lambda _: HOME, text)
        text = _EMAIL.sub(EMAIL, text)
        text = mask_addresses(text, version=version)
        if self._user:
            text = self._user.sub(USER, text)
        return self._hosts.sub(HOST, text) if self._hosts else text

    def _mask_known(self, text: str) -> str:
        if self._known is None:
            return text
        return mask_cut_secrets(self._known.sub(lambda m: m["kept"] or PLACEHOLDER, text), self._beginnings)

    def _json(self, text: str, depth: int) -> str:
        """JSON inside a string, read as JSON: what the rules for text missed (pairs, escapes in names) is found."""
        if depth > 3 or len(text) > _LARGEST_JSON or text.lstrip()[:1] not in ("{", "["):
            return text
        try:
            parsed = json.loads(text)
            clean = self._tree(parsed, "", 0, (), depth + 1)
            return text if clean == parsed else json.dumps(clean, ensure_ascii=False)
        except (ValueError, RecursionError):
            return text

    # --- URLs -----------------------------------------------------------------------------------------------------

    def _url_once(self, url: str) -> str:
        scheme = _SCHEME.match(url)
        if not scheme:
            return _LOOSE_LOGIN.sub(PLACEHOLDER + "@", url, count=1)
        return scheme[0] + self._url_rest(url[scheme.end() :], 0)

    def _url_rest(self, rest: str, depth: int) -> str:
        """What follows `scheme://`."""
        cut = next((at for at, char in enumerate(rest) if char in "/?#"), len(rest))
        head = rest[:cut]
        port = head.rpartition(":")[2]
        if "@" not in head and ":" in head and not head.endswith("]") and not port.isdigit() and "@" in rest:
            cut = rest.rindex("@")  # a password with an unescaped / ? or #: the host is behind the last @
            cut = next((at for at in range(cut, len(rest)) if rest[at] in "/?#"), len(rest))
        login, at_sign, host = rest[:cut].rpartition("@")
        if at_sign and login != "git":
            login = PLACEHOLDER
        path, mark, query = rest[cut:].partition("?")
        if not mark:
            path, mark, query = rest[cut:].partition("#")
        pieces = re.split(r"([&;#])", query)
        return login + at_sign + self._host(host) + path + mark + "".join(self._parameter(p, depth) for p in pieces)

    def _host(self, host: str) -> str:
        name, colon, port = host.rpartition(":")
        if not colon or not port.isdigit():
            name, colon, port = host, "", ""
        bare = name.strip("[]")
        kind = readable_address(bare)
        if kind is not None:
            return host if kind else ADDRESS + colon + port
        low = bare.lower()
        single = "." not in low and low not in _COMMON_NAMES and re.fullmatch(r"[a-z0-9_-]+", low)
        if low in self._host_names - _COMMON_NAMES or low.endswith(_PRIVATE_DOMAINS) or single:
            return HOST + colon + port
        return host

    def _parameter(self, piece: str, depth: int) -> str:
        name, equals, value = piece.partition("=")
        if not equals or not value:
            return piece
        if is_secret_query(unquote_plus(name)):
            return f"{name}={PLACEHOLDER}"
        plain = unquote_plus(value)
        if plain != value and depth < 3 and self._text(plain, depth + 1, version=False) != plain:
            return f"{name}={PLACEHOLDER}"
        return piece

    # --- commands -------------------------------------------------------------------------------------------------

    def _command_once(self, command: str) -> str:
        out: list[str] = []
        done = 0
        for group in shell_words(command):
            variables = [not word.single_quoted and bool(VARIABLE.fullmatch(word.value)) for word in group]
            for word, masked in zip(group, _mask_words([word.value for word in group], variables), strict=True):
                out += [command[done : word.start], self._render(command[word.start : word.end], word, masked)]
                done = word.end
        return "".join(out) + command[done:]

    def _render(self, raw: str, word: ShellWord, masked: str) -> str:
        """The word as it was written, with what must go replaced; quoted anew only where that cannot be done."""
        if masked != word.value:
            if masked == PLACEHOLDER:
                return PLACEHOLDER
            shown = self.text(masked)
            if raw[0] == raw[-1] and raw[0] in "\"'" and len(raw) > 1 and raw[0] not in shown:
                return raw[0] + shown + raw[0]
            kept = shown.replace(PLACEHOLDER, "")
            return shown if shlex.quote(kept) in (kept, "''") or HOME in kept else shlex.quote(shown)
        clean = word.value if word.value == raw else self.text(word.value)
        if clean == word.value:
            return raw  # what `text` finds in the whole line is found there, with the words around it
        shown = self.text(raw)
        read = shell_words(shown)
        same = len(read) == 1 and len(read[0]) == 1 and read[0][0].value == clean
        return shown if same else (clean if clean in (PLACEHOLDER, ADDRESS) else shlex.quote(clean))

    # --- trees ----------------------------------------------------------------------------------------------------

    def _tree(self, value: Any, key: str, level: int, above: tuple[int, ...], depth: int = 0) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return PLACEHOLDER if self._known and self._known.search(as_text(value)) else value
        if isinstance(value, str | bytes | bytearray | PurePath):
            if isinstance(value, str) and re.search(r"(?i)(?:command|command_?line|cmd|cmdline)$", key):
                return self.command(value)
            said = re.search(r"(?i)version|driver|build|release|revision|commit", key) is not None
            return self._text(value, depth, version=said)
        if level >= _DEEPEST or id(value) in above:
            return PLACEHOLDER
        deeper = (level + 1, (*above, id(value)), depth)
        if isinstance(value, Mapping):
            return self._mapping(value, deeper)
        if isinstance(value, list | tuple | set | frozenset):
            items = self._items(list(value), key, deeper)
            return tuple(items) if isinstance(value, tuple) else items
        as_dict = _fields_of(value)
        return self._mapping(as_dict, deeper) if as_dict is not None else self._text(value, depth, version=False)

    def _mapping(self, value: Mapping[Any, Any], deeper: tuple[int, tuple[int, ...], int]) -> dict[Any, Any]:
        out: dict[Any, Any] = {}
        label = value.get("name", value.get("key"))
        names_secret = isinstance(label, str) and is_secret_name(label)
        for key, item in value.items():
            shown = self._text(key, deeper[2], version=False) if isinstance(key, str | bytes) else key
            if shown != key:
                number = 2
                base = shown
                while shown in out:  # two keys that differ in their secret only
                    shown, number = f"{base} ({number})", number + 1
            secret = isinstance(key, str) and (is_secret_name(key) or (names_secret and key == "value"))
            if key == "token" and "logprob" in value:
                secret = False  # a generated token beside its log probability
            if secret and _holds_something(item):
                out[shown] = PLACEHOLDER
            else:
                out[shown] = self._tree(item, key if isinstance(key, str) else "", *deeper)
        return out

    def _items(self, items: list[Any], key: str, deeper: tuple[int, tuple[int, ...], int]) -> list[Any]:
        items = [as_text(item) if isinstance(item, bytes | bytearray) else item for item in items]
        if items and all(isinstance(item, str) for item in items):
            if len(items) == 2 and not items[0].startswith("-") and is_secret_name(items[0]) and items[1]:
                return [self.text(items[0]), PLACEHOLDER]
            if any(item.startswith("-") for item in items):
                items = _mask_words(items, [False] * len(items))
        return [self._tree(item, key, *deeper) for item in items]


def _settled(once: Callable[[str], str], text: str) -> str:
    """`once` applied until nothing changes: what one rule leaves can complete what another looks for."""
    for _ in range(_PASSES):
        changed = once(text)
        if changed == text:
            break
        text = changed
    return text


def _names_pattern(names: Iterable[str], inside: str) -> re.Pattern[str] | None:
    """Whole words only, three characters at least, and no word that everybody uses."""
    wanted = {name for name in names if len(name) >= 3 and name.lower() not in _COMMON_NAMES}
    if not wanted:
        return None
    either = "|".join(re.escape(name) for name in sorted(wanted, key=lambda name: (-len(name), name)))
    # Not inside <user>, <host> … themselves, nor after $ where a shell reads a variable's name.
    return re.compile(rf"(?<![{inside}<$])(?:{either})(?![{inside}>])")


def _holds_something(value: Any) -> bool:
    empty = isinstance(value, str | bytes | list | tuple | dict | set) and len(value) == 0
    return not (empty or value is None or isinstance(value, bool))


def _fields_of(value: Any) -> dict[str, Any] | None:
    try:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        dump = getattr(value, "model_dump", None)
        dumped = dump() if callable(dump) else None
        return dumped if isinstance(dumped, dict) else None
    except Exception:  # a broken model is shown by its str() instead
        return None


def _mask_value(name: str, value: str) -> str:
    """The placeholder, behind the scheme of an Authorization header (`Bearer <redacted>`)."""
    scheme = SCHEMES.match(value)
    return scheme[0] + PLACEHOLDER if scheme and "auth" in name.lower() else PLACEHOLDER


def _mask_word(word: str) -> str:
    """NAME=value, --flag=value, `Name: value` and chains of them (`--env=HF_TOKEN=…`, `--header=Authorization: …`)."""
    at = 0
    while found := _WORD.match(word, at):
        value = word[found.end() :]
        if is_secret_name(found[1]) or (found[1].startswith("-") and _secret_flag(found[1], value)):
            if VARIABLE.fullmatch(value):
                return word
            return word[: found.end()] + _mask_value(found[1], value)
        at = found.end()
    return word


def _secret_flag(flag: str, value: str) -> bool:
    """Flags of one bare word need a look at the value: `--key` may be a file, `-k` is curl's --insecure."""
    if not _FLAG_WORD.fullmatch(flag):
        return False
    if flag == "-k":
        return "://" not in value
    if flag == "--key":
        return "/" not in value and not value.endswith((".pem", ".key", ".crt"))
    if flag in ("-u", "--user", "--proxy-user"):
        return ":" in value and "://" not in value and not re.fullmatch(r"\d+:\d+", value)
    return is_secret_name(flag)


def _mask_words(words: list[str], variables: list[bool]) -> list[str]:
    """The words of one command with the values of secret flags, variables and headers replaced.

    `variables`: which words a shell would replace by a variable's value. vLLM's `--api-key` takes several values, so
    there every word up to the next flag goes.
    """
    several = any("vllm" in word for word in words[:8])
    out = list(words)
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not (word.startswith("-") and "=" not in word and at < len(words) and _secret_flag(word, words[at])):
            out[at - 1] = _mask_word(word)
            continue
        first = True
        while at < len(words) and (first or several):
            if (
                words[at].startswith("--")
                or re.fullmatch(r"-[A-Za-z]", words[at])
                or (words[at][:1] == "-" and not first)
            ):
                break
            if not variables[at] and words[at]:
                out[at] = _mask_value(word, words[at])
            at, first = at + 1, False
    return out


def _mask_span(text: str, start: int, end: int, *, name: str, quote: str) -> str | None:
    """What replaces text[start:end], or None where nothing must be."""
    value = text[start:end]
    literal = start == 0 or text[start - 1] not in "\"'"
    variable = VARIABLE.fullmatch(value) and text[start - 1 : start] != "'"
    if not value or value == PLACEHOLDER or variable or (literal and SAFE_LITERAL.fullmatch(value)):
        return None
    mask = _mask_value(name, value)
    return quote + mask + quote if literal else mask


def _mask_named(text: str) -> str:
    """`name: value`, `name=value`, `"name": "value"` in any text where the name is a secret's."""
    out: list[str] = []
    done = at = 0
    while found := _NAMED.search(text, at):
        at = found.end()
        name = found[1]
        ends_line = text[found.end() - 1 : found.end()] == "\n"
        colon = ":" in text[found.end(1) : found.end()]
        flag = name.startswith("-")
        if ends_line or not is_secret_name(name) or (flag and colon and name.startswith("--")):
            at = found.end(1)
            continue
        if colon and not found[2] and name.lower() == "token" and _PROSE_TOKEN.search(text[: found.start()][-12:]):
            continue
        start, end = _named_span(text, found.end(), name, colon and not found[2])
        if name == "token" and _LOGPROB.match(text, end):
            continue  # a generated token beside its log probability
        mask = _mask_span(text, start, end, name=name, quote=(found[2] or "") if colon else "")
        if mask is not None:
            out += [text[done:start], mask]
            done = end
        at = max(end, found.end())
    return "".join(out) + text[done:]


def _named_span(text: str, at: int, name: str, header: bool) -> tuple[int, int]:
    low = name.lower()
    scheme = SCHEMES.match(text, at) if "auth" in low else None
    if scheme and header and scheme[0].strip().lower() not in ("digest", "aws4-hmac-sha256"):
        _, end = value_span(text, scheme.end(), whole_line=False, stop_at_ampersand=False)
        return at, end
    whole = header and ("cookie" in low or "authorization" in low)
    return value_span(text, at, whole_line=whole, stop_at_ampersand=not name.isupper())


def _takes_value(text: str, match: re.Match[str]) -> bool:
    value = text[match.end() : match.end() + 400].split(None, 1)[:1]
    return bool(value) and _secret_flag(match[1], value[0]) and not _NOT_A_VALUE.match(text, match.end())


def _mask_after(pattern: re.Pattern[str], text: str, wanted: Callable[[str, re.Match[str]], bool]) -> str:
    """The value that stands behind each match of `pattern` for which `wanted` holds."""
    out: list[str] = []
    done = at = 0
    while found := pattern.search(text, at):
        at = found.end()
        if not wanted(text, found):
            at = max(found.start() + 1, found.end(1) if found.re.groups else found.end())
            continue
        start, end = value_span(text, found.end(), whole_line=False, stop_at_ampersand=False)
        mask = _mask_span(text, start, end, name=found[0], quote="")
        if mask is not None and end > start:
            out += [text[done:start], mask]
            done = end
        at = max(end, found.end())
    return "".join(out) + text[done:]


def tidy(text: str, redact: Callable[[str], str], limit: int = 300) -> str:
    """A server's words as one printable line of at most `limit` characters, redacted (by `Redactor.text`) before it is
    cut: of a key that stands at the cut, no part is left over."""
    line = shorten(redact(text).encode("utf-8", "replace"), 4 * limit + len(text))
    return shorten(redact(line).encode(), limit)


@lru_cache(maxsize=1)
def default() -> Redactor:
    """The redactor for this machine and user, with no secret known beforehand."""
    return Redactor()


# What a secret looks like: names that announce one, shapes of well-known keys, and where a value ends in text


_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_STRONG = word_set(
    "password passwd passphrase pwd secret secrets credential credentials authorization auth cookie cookies bearer jwt "
    "apikey apikeys accesskey secretkey privatekey authtoken accesstoken apitoken hftoken sessionid"
)
_ENDINGS = word_set("value header string hash plain base64 b")
_TOKEN_HARMLESS = word_set(
    "eos bos pad stop unk sep cls mask image video audio vision special next per first last inter input output prompt "
    "completion generated draft cached new each max min num count extra start end begin placeholder eot eom eoi boi "
    "thought think thinking reasoning tool call one every total decode prefill text logits bonus added target"
)
_PLURAL_SECRET = word_set("api access auth refresh bearer hf secret session admin")
_KEY_HARMLESS = word_set(
    "cache primary sort foreign public group partition hash block prefix lora routing query head index dict map metric "
    "label config kv attn object lookup dispatch registry search column join shard row unique hot host value layer "
    "state weight tensor param field extra"
)

_SHAPES = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)"
    r"|(?<![A-Za-z0-9_])(?:"
    r"sk-(?=[A-Za-z_-]*\d)[A-Za-z0-9_*-]{8,}|sk-[A-Za-z0-9_*-]{20,}|[sr]k_(?:live|test)_[A-Za-z0-9]{8,}"
    r"|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[\w-]{16,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{30,}|ya29\.[\w-]{20,}|xox[abeoprs]-[\w-]{10,}|nvapi-[\w-]{16,}"
    r"|gsk_[A-Za-z0-9]{20,}|xai-[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{20,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{40,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"
    r")",
    re.DOTALL,
)
_BEARER = re.compile(r"(?i)(?<!\w)(bearer\s{1,4})(?=[^\s\"',;]{0,200}\d)([A-Za-z0-9._~+/=-]{8,})")
_GPU_UUID = re.compile(r"(?<!\w)(GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?!\w)")

# A secret of these words is a convention for "no key", not a secret: removing it everywhere would only hide text.
NOT_SECRET = word_set("empty none null true false dummy test token password secret default changeme redacted")
_SHORTEST = 4

SCHEMES = re.compile(r"(?i)(?:bearer|basic|token|apikey|api-key|digest|negotiate|aws4-hmac-sha256)[ \t]+(?=\S)")
VARIABLE = re.compile(r"\$(?:[A-Z_][A-Z0-9_]*|\{[A-Z_][A-Z0-9_]*\})")
SAFE_LITERAL = re.compile(r"(?:None|null|True|False|true|false)(?![\w.-])")


def as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        if isinstance(value, bytes | bytearray):
            return value.decode("utf-8", "replace")
        return str(value)
    except Exception:  # an object whose own __str__ fails must not stop a record from being written
        return PLACEHOLDER


@lru_cache(maxsize=8192)
def is_secret_name(name: str) -> bool:
    """Does a flag, key, header, variable or parameter of this name hold a secret?

    Decided by the last word of the name (snake, kebab or camel case): `hf_token`, `X-Api-Key`, `ssl_keyfile_password`
    do; `max_tokens`, `eos_token`, `cache_key`, `ssl_keyfile`, `api_key_file` do not. In capitals, as environment
    variables are written, every `…_KEY` but a public one does, and so does `KEY` alone.
    """
    words = [word.lower() for word in _WORDS.findall(name[:200])]
    while len(words) > 1 and words[-1] in _ENDINGS:
        words.pop()
    if not words:
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _STRONG:
        return True
    if last == "pass":
        return before not in ("", "forward", "single", "two", "multi", "first", "second", "one", "by")
    if last == "token":
        return before not in _TOKEN_HARMLESS
    if last in ("tokens", "keys"):
        return before in _PLURAL_SECRET
    if last == "key":
        if name.isupper():
            return before != "public"
        return before != "" and before not in _KEY_HARMLESS
    return False


_QUERY_NAMES = word_set("key sig signature code x-amz-signature x-amz-credential awsaccesskeyid ")


def is_secret_query(name: str) -> bool:
    """As `is_secret_name`, for a parameter of a URL, where `key`, `sig` and `code` hold secrets too."""
    return name.lower() in _QUERY_NAMES or is_secret_name(name)


def mask_shapes(text: str) -> str:
    """Replace keys that are known by their shape alone: sk-…, hf_…, JWTs, private key blocks, GPU serial numbers."""
    text = _SHAPES.sub(PLACEHOLDER, text)
    text = _BEARER.sub(lambda m: m[1] + PLACEHOLDER, text)
    return _GPU_UUID.sub(lambda m: f"{m[1]}-{PLACEHOLDER}", text)


_VLLM_KEYS = re.compile(
    r"(\bvllm\b(?:[^\r\n]|\\\r?\n){0,1000}?--api-key[ \t]+" + PLACEHOLDER + r")((?:[ \t]+(?!-)[^\s\"'|;&<>`\\]+)+)"
)


def mask_more_keys(text: str) -> str:
    """vLLM's `--api-key` takes several values: behind the first, each word up to the next flag is one."""
    if "--api-key" not in text:
        return text
    return _VLLM_KEYS.sub(lambda m: m[1] + re.sub(r"[^ \t]+", PLACEHOLDER, m[2]), text)


def _base64_cores(raw: bytes) -> Iterable[str]:
    """The part of base64 text that stays the same wherever `raw` stands in a longer encoded string (three offsets)."""
    for offset in range(3):
        coded = base64.b64encode(b"\0" * offset + raw).decode()
        first = -(-8 * offset // 6)
        core = coded[first : 8 * (offset + len(raw)) // 6]
        if len(core) >= 6:
            yield core
            yield core.replace("+", "-").replace("/", "_")


def forms_of(secret: str) -> list[str]:
    """How an exact secret can appear: plain, URL-encoded, JSON-, HTML- or shell-escaped, hexadecimal, base64."""
    raw = secret.encode("utf-8", "surrogatepass")
    url = [quote(raw, safe=""), quote(raw), quote_plus(raw)]
    url += [re.sub(r"%[0-9A-F]{2}", lambda m: m[0].lower(), form) for form in url]
    dumped = [json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]]
    dumped += [form.replace("/", "\\/") for form in dumped] + [json.dumps(form)[1:-1] for form in dumped]
    other = [html.escape(secret), html.escape(secret, quote=False), repr(secret)[1:-1], shlex.quote(secret)]
    coded = base64.b64encode(raw).decode().rstrip("=")
    return list({secret, *url, *dumped, *other, raw.hex(), raw.hex().upper(), coded})


def known_secrets_pattern(secrets: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds each secret in every form, or None where there is none to look for.

    Secrets shorter than four characters and the words that servers take for "no key" (EMPTY, none, …) are left to the
    rules of structure: looked for everywhere they would hide ordinary text.
    """
    plain: set[str] = set()
    coded: set[str] = set()
    for secret in secrets:
        if len(secret) >= _SHORTEST and secret.lower() not in NOT_SECRET and secret.strip():
            plain.update(form for form in forms_of(secret) if len(form) >= _SHORTEST)
            coded.update(_base64_cores(secret.encode("utf-8", "surrogatepass")))
    if not plain:
        return None
    parts = [re.escape(form) for form in sorted(plain, key=lambda form: (-len(form), form))]
    # A placeholder is matched, and put back, so that a secret like "acte" cannot eat into one at the second pass.
    parts.append("(?P<kept>" + "|".join(map(re.escape, (PLACEHOLDER, ADDRESS, USER, HOST, EMAIL, HOME))) + ")")
    edge = "[A-Za-z0-9+/_-]{0,2}"
    parts += [f"{edge}{re.escape(core)}{edge}={{0,2}}" for core in sorted(coded, key=lambda core: (-len(core), core))]
    return re.compile("|".join(parts))


_CUT = 6
"""Characters of a secret's beginning that are taken for it where a text was cut."""
_AT_ELLIPSIS = re.compile(r"[\s\"'`)\]},;:]{0,4}(?:…|\.{3})")
_AT_END = re.compile(r"[\s\"'`)\]}.,;:]*\Z")
_PLAIN_WORD = re.compile(r"[A-Za-z]?[a-z_-]{1,15}|[A-Z_-]{1,16}")


def beginnings_of(secrets: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """For `mask_cut_secrets`: each form of each secret, after its first characters."""
    forms: set[str] = set()
    for secret in secrets:
        bare = SCHEMES.sub("", secret, count=1) if SCHEMES.match(secret) else secret
        if bare.lower() not in NOT_SECRET:
            forms.update(form for form in forms_of(bare) if len(form) > _CUT)
    return tuple((form[:_CUT], form) for form in sorted(forms))


def mask_cut_secrets(text: str, beginnings: Iterable[tuple[str, str]]) -> str:
    """The beginning of a secret before an ellipsis, or at the very end of a text, is what a cut has left of it.

    At the end an ordinary word may stay: the key `sglang-1234` must not hide the name of the engine.
    """
    for head, form in beginnings:
        at = text.find(head)
        while at >= 0:
            end = at + _CUT
            while end < len(text) and end - at < len(form) and text[end] == form[end - at]:
                end += 1
            cut = _AT_ELLIPSIS.match(text, end) or (
                _AT_END.match(text, end) and not _PLAIN_WORD.fullmatch(text, at, end)
            )
            if cut and end - at < len(form) and PLACEHOLDER not in text[max(0, at - len(PLACEHOLDER)) : end + 1]:
                text = text[:at] + PLACEHOLDER + text[end:]
                at += len(PLACEHOLDER)
            at = text.find(head, at + 1)
    return text


def quoted_end(text: str, start: int, slashes: int, mark: str) -> int:
    """Where a string ends that opened with `slashes` backslashes and the quote `mark`; -1 where it never does.

    `start`: the first position inside. JSON inside JSON escapes each quote again: at nesting depth d a delimiter has
    2^d - 1 backslashes, so a closing one has that many modulo twice as many plus one.
    """
    period = 2 * (slashes + 1)
    at = text.find(mark, start)
    while at >= 0:
        run = 0
        while at - run - 1 >= start and text[at - run - 1] == "\\":
            run += 1
        shell = mark == "'" and slashes == 0 and (text.startswith("'\"'\"'", at) or text.startswith("'\\''", at))
        if shell:  # the two ways a shell writes a quote inside single quotes
            at = text.find(mark, at + (5 if text[at + 1] == '"' else 4))
            continue
        if run % period == slashes:
            return at - slashes
        at = text.find(mark, at + 1)
    return -1


_BRACKETS = {"[": "]", "{": "}", "(": ")"}


def _bracket_end(text: str, start: int) -> int:
    """One past the bracket that closes the one at `start`, quotes respected; -1 where none does within 4,000."""
    stack: list[str] = []
    at = start
    while at < min(len(text), start + 4_000):
        char = text[at]
        if char in "\"'":
            end = quoted_end(text, at + 1, 0, char)
            if end < 0:
                return -1
            at = end
        elif char in _BRACKETS:
            stack.append(_BRACKETS[char])
        elif stack and char == stack[-1]:
            stack.pop()
            if not stack:
                return at + 1
        at += 1
    return -1


_OPEN = re.compile(r"(\\*)([\"'])")
_BARE = re.compile(r"[^\s\"']+")
_UNQUOTED_LINE = re.compile(r"[^\r\n\"']*")
_LISTED = re.compile(r"[\[({]\s{0,8}(?:[\[({]\s{0,8}){0,8}\\*[\"']")


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return end if end >= 0 else len(text)


def value_span(text: str, at: int, *, whole_line: bool, stop_at_ampersand: bool) -> tuple[int, int]:
    """The (start, end) of the value that begins at `at`: inside its quotes, its brackets, or to the next space.

    `whole_line`: an unquoted value runs to the end of the line or the next quote (cookies, unknown schemes).
    """
    opened = _OPEN.match(text, at)
    if opened:
        end = quoted_end(text, opened.end(), len(opened[1]), opened[2])
        return opened.end(), (end if end >= 0 else _line_end(text, opened.end()))
    variable = VARIABLE.match(text, at)
    if variable:
        return at, variable.end()
    if _LISTED.match(text, at):
        end = _bracket_end(text, at)
        return at, (end if end > 0 else _line_end(text, at))
    found = (_UNQUOTED_LINE if whole_line else _BARE).match(text, at)
    if not found:
        return at, at
    value = found[0]
    if stop_at_ampersand and not whole_line:
        value = value.partition("&")[0]
    if found.end() < len(text) and text[found.end()] in "\"'":
        value = value.rstrip("\\")
    return at, at + len(value.rstrip(",;)]} \t"))


@dataclass(frozen=True, slots=True)
class ShellWord:
    """One word of a command line: its place in the text, the text as a shell would read it, and how it was quoted."""

    start: int
    end: int
    value: str
    single_quoted: bool


_PIECE = r"""'(?:[^']*)'?|"(?:[^"\\]|\\.)*"?|\\(?!\r?\n).|[^\s;&|()'"\\]+|\\\Z"""
_SHELL_PIECE = re.compile(_PIECE, re.DOTALL)
_SHELL = re.compile(rf"(?P<end>[;&|()\n])|(?P<word>(?:{_PIECE})+)|\\\r?\n|\s", re.DOTALL)


def shell_words(command: str) -> list[list[ShellWord]]:
    """Split a command line into simple commands (at ; & | newline and parentheses), each a list of words.

    Never raises: an open quote runs to the end. A backslash before a newline is a space.
    """
    groups: list[list[ShellWord]] = [[]]
    for match in _SHELL.finditer(command):
        if match["end"]:
            groups.append([])
        elif match["word"]:
            pieces: list[str] = _SHELL_PIECE.findall(match["word"])
            single = any(piece.startswith("'") for piece in pieces)
            groups[-1].append(ShellWord(match.start(), match.end(), "".join(map(_unquoted, pieces)), single))
    return [group for group in groups if group]


def _unquoted(piece: str) -> str:
    if piece[0] == "'":
        return piece[1:].removesuffix("'")
    if piece[0] == '"':
        inside = piece[1:-1] if len(piece) > 1 and piece[-1] == '"' else piece[1:]
        return re.sub(r'\\(["\\$`])', r"\1", inside).replace("\\\n", "")
    return piece[1:] if piece[0] == "\\" and len(piece) > 1 else piece


_VERSION_BEFORE = re.compile(
    r"(?i)(?:version|release|build|driver|revision|cuda|cudnn|cublas|nccl|rocm|torch|python|firmware|bios|kernel"
    r"|-cu\d\d|[=~><!]=)[\s\"'):=(]{0,4}$"
)
_PACKAGE_BEFORE = re.compile(r"[A-Za-z0-9][-/]$")
_IPV4 = re.compile(
    r"(?<![A-Za-z0-9.+])(\d{1,3}(?:\.\d{1,3}){3})"
    r"(?![A-Za-z0-9_+]|\.\d|\.(?:post|dev|rc)\d|-(?:rc|alpha|beta|dev|post|pre))(?P<after>:\d|/\d)?"
)
_SIX = r"[0-9A-Fa-f:]{2,39}(?:\d{1,3}(?:\.\d{1,3}){3})?(?:%[\w.-]{1,32})?"
_IPV6 = re.compile(rf"\[(?P<boxed>{_SIX})\]|(?:(?<![\w:.%])|(?<=[g-zG-Z_]:))(?P<bare>{_SIX})(?![\w:%])")
_MAC = re.compile(r"(?<![\w:-])[0-9A-Fa-f]{2}([:-])[0-9A-Fa-f]{2}(?:\1[0-9A-Fa-f]{2}){4}(?![\w:-])")


def readable_address(text: str) -> bool | None:
    """True for loopback and "any" addresses, which tell nothing; False for other addresses; None where it is none."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return address.is_loopback or address.is_unspecified


def mask_addresses(text: str, *, version: bool = False) -> str:
    """Replace IP and MAC addresses; loopback and "any" (127.0.0.0/8, ::1, 0.0.0.0, ::) stay readable.

    Four numbers with dots are a version, not an address, where (1) the first is 0 (0.5.6.1; no host has such an
    address), (2) `==`, `>=` or a word like version, driver or cuda stands just before, a letter touches it (v1.2.3.4),
    or a package's name with a hyphen or slash does and the number is not a private address, (3) a suffix like
    `.post3`, `+cu121`, `-rc1` follows, or (4) `version` is set, because the field's name says so. A port or a
    network's length after it, or `//` or `@` before it, make it an address all the same; what stays in doubt is one.
    """

    def four(match: re.Match[str]) -> str:
        if readable_address(match[1]) is not False:
            return match[0]
        before = text_now[max(0, match.start() - 24) : match.start()]
        if not match["after"] and not before.endswith(("//", "@")):
            package = _PACKAGE_BEFORE.search(before) and not ipaddress.ip_address(match[1]).is_private
            if version or match[1].startswith("0.") or package or _VERSION_BEFORE.search(before):
                return match[0]
        return ADDRESS + (match["after"] or "")

    def six(match: re.Match[str]) -> str:
        found = match["boxed"] or match["bare"]
        tail = ""
        if readable_address(found) is None and found.endswith(":"):
            found, tail = found[:-1], ":"
        if found.count(":") < 2 or readable_address(found) is not False:
            return match[0]
        return ADDRESS + tail

    text_now = _IPV6.sub(six, _MAC.sub(ADDRESS, text))
    return _IPV4.sub(four, text_now)
