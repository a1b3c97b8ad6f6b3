"""What a secret looks like: names that announce one, shapes of well-known keys, and where a value ends in text.

Pure functions and tables for `redact.py`; nothing here replaces anything.
"""

from __future__ import annotations

import base64
import html
import ipaddress
import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, quote_plus

PLACEHOLDER = "<redacted>"
ADDRESS = "<address>"
USER = "<user>"
HOST = "<host>"
EMAIL = "<email>"
HOME = "$HOME"


def word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


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


def shell_words(command: str) -> list[list[ShellWord]]:
    """Split a command line into simple commands (at ; & | newline and parentheses), each a list of words.

    Never raises: an open quote runs to the end. A backslash before a newline is a space.
    """
    groups: list[list[ShellWord]] = [[]]
    at, size = 0, len(command)
    while at < size:
        char = command[at]
        if char in ";&|()\n":
            groups.append([])
            at += 1
        elif char.isspace() or command.startswith(("\\\n", "\\\r\n"), at):
            at += 2 if char == "\\" else 1
        else:
            word = _shell_word(command, at)
            groups[-1].append(word)
            at = word.end
    return [group for group in groups if group]


def _shell_word(command: str, start: int) -> ShellWord:
    parts: list[str] = []
    at, size, single = start, len(command), False
    while at < size and not (command[at].isspace() or command[at] in ";&|()"):
        char = command[at]
        if char == "'":
            single = True
            end = command.find("'", at + 1)
            end = size if end < 0 else end
            parts.append(command[at + 1 : end])
            at = end + 1
        elif char == '"':
            end = quoted_end(command, at + 1, 0, '"')
            end = size if end < 0 else end
            parts.append(re.sub(r'\\(["\\$`])', r"\1", command[at + 1 : end]).replace("\\\n", ""))
            at = end + 1
        elif char == "\\" and at + 1 < size:
            if command.startswith(("\n", "\r\n"), at + 1):
                break
            parts.append(command[at + 1])
            at += 2
        else:
            parts.append(char)
            at += 1
    return ShellWord(start, min(at, size), "".join(parts), single)


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
