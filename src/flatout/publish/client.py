"""The talk with a site: who am I, and publish. Every wait is bounded, and what is sent twice is one run there.

Redirects are not followed: the token goes to the address that was typed and nowhere else.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpx

from flatout import __version__
from flatout.net import retry_after_s
from flatout.publish.destination import PublishError, SiteTrouble
from flatout.show.safe import clean

TRIES: Final = 5
CALL_S: Final = 90.0
"""The longest that one call may take as a whole, however slowly the site drips."""
UPLOAD_BYTES_S: Final = 100_000
"""A slower way than this is given up: samples get that much more time."""
ALL_S: Final = 300.0
LONGEST_PAUSE_S: Final = 60.0
MAX_ANSWER: Final = 1024 * 1024
_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Me:
    """Who the token is for the site."""

    name: str
    scopes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Published:
    """`created`: False where the site had this very record before. `state`: public, or queued for a moderator."""

    public_id: str
    url: str
    state: str
    created: bool


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is published: the record's canonical bytes, the zip of its samples, the run that it takes the place of."""

    record: bytes
    samples: bytes | None = None
    replaces: str | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: httpx.Headers
    content: bytes

    def json(self) -> dict[str, Any]:
        try:
            content = json.loads(self.content)
        except (ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}


class Site:
    """One site for one token. `say` hears, in words, of each wait; `sleep` and `now` are the clock (tests have their
    own)."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        say: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url
        self._say, self._sleep, self._now = say, sleep, now
        self._client = httpx.Client(
            headers={
                "Authorization": f"Bearer {token}",
                "User-Agent": f"flatout/{__version__}",
                "Accept": "application/json, application/problem+json",
                "Accept-Encoding": "identity",
            },
            timeout=httpx.Timeout(30.0, connect=10.0),
            follow_redirects=False,
            trust_env=urlsplit(url).scheme == "https",  # a proxy would read what goes over plain HTTP
        )

    def __enter__(self) -> Site:
        return self

    def __exit__(self, kind: type[BaseException] | None, what: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def me(self) -> Me:
        """Asks whose token it is. Raises SiteTrouble."""
        answer = self._patiently("GET", "/api/v1/me", "whose token this is", None)
        content = answer.json()
        name, scopes = content.get("name"), content.get("scopes")
        if answer.status != 200 or not isinstance(name, str) or not isinstance(scopes, list):
            raise SiteTrouble(f"{self.url} is no flatout site: it does not answer who the token is for", answer.status)
        return Me(clean(name, 60), tuple(clean(s, 40) for s in scopes))

    def publish(self, parcel: Parcel) -> Published:
        """Sends the record, again where it is not known whether it came: the site takes it once. Raises SiteTrouble."""
        headers, body = _packed(parcel)
        where = "/api/v1/runs" + (f"?replaces={parcel.replaces}" if parcel.replaces else "")
        answer = self._patiently("POST", where, "the record", body, headers)
        content = answer.json()
        public_id, link = content.get("id"), _link(self.url, content.get("url"))
        if answer.status not in (200, 201) or not isinstance(public_id, str) or link is None:
            raise SiteTrouble(f"{self.url} took the record but does not say where it is", answer.status)
        self._compare(parcel.record, content.get("content_hash"))
        if urlsplit(link).netloc.lower() != urlsplit(self.url).netloc.lower():
            self._say(f"note: the link leads to another address than {self.url}, which is where the record was sent")
        return Published(public_id=clean(public_id, 40), url=link, state=clean(content.get("state", "public"), 20),
                         created=answer.status == 201)  # fmt: skip

    def _compare(self, record: bytes, kept_as: object) -> None:
        """Raises SiteTrouble where the site keeps something else than was sent."""
        sent = hashlib.sha256(record).hexdigest()
        if kept_as is None:
            self._say(f"note: {self.url} does not say under which hash it keeps the record; it was sent as {sent}")
        elif kept_as != sent:
            raise SiteTrouble(
                f"{self.url} took the record but keeps something else: it was sent with the SHA-256 {sent}, and the "
                f"site names {clean(kept_as, 64)}. Look at it there, and withdraw it if it is not yours"
            )

    def _patiently(
        self, method: str, where: str, what: str, body: bytes | None, headers: dict[str, str] | None = None
    ) -> _Answer:
        """The answer to one call, tried again after lost connections and while the site asks to wait."""
        until = self._now() + ALL_S
        for number in range(1, TRIES + 1):
            trouble, pause = "", 0.5 * 2 ** (number - 1) * (1 + random.random() / 4)
            try:
                answer = self._call(method, where, body, headers or {})
            except httpx.HTTPError as error:
                trouble = _words(error)
            except httpx.InvalidURL as error:  # of a redirect, which httpx looks at though it is not to follow it
                raise SiteTrouble(_sent_on(self.url, None)) from error
            else:
                if answer.status not in _AGAIN or not _passing(answer):
                    return _good(answer, self.url)
                trouble, asked = _says(answer), retry_after_s(answer.headers)
                pause = max(pause, asked or 0.0)
            if number == TRIES or pause > LONGEST_PAUSE_S or self._now() + pause > until:
                break
            self._say(f"{self.url}: {trouble}; trying again in {pause:.0f} s ({number + 1} of {TRIES})")
            self._sleep(pause)
        raise _gave_up(self.url, what, trouble, number, pause, sending=method == "POST")

    def _call(self, method: str, where: str, body: bytes | None, headers: dict[str, str]) -> _Answer:
        """One call, bounded as a whole: it runs beside, so that a site which drips cannot hold us."""
        limit = CALL_S + len(body or b"") / UPLOAD_BYTES_S
        outcomes: queue.Queue[_Answer | BaseException] = queue.Queue()

        def work() -> None:
            try:
                with self._client.stream(method, self.url + where, content=body, headers=headers) as reply:
                    outcomes.put(_Answer(reply.status_code, reply.headers, _limited(reply)))
            except BaseException as error:
                outcomes.put(error)

        threading.Thread(target=work, daemon=True).start()
        try:
            outcome = outcomes.get(timeout=limit)
        except queue.Empty:
            raise httpx.ReadTimeout(f"no whole answer within {limit:.0f} s") from None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def _link(url: str, address: object) -> str | None:
    """Where the site's words lead, as something that may be shown as a link; None where they are none."""
    if not isinstance(address, str) or not address or len(address) > 2_000:
        return None
    try:
        link = urljoin(f"{url}/", address)
        parts = urlsplit(link)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.username is None and parts.port != 0
    except ValueError:
        return None
    return clean(link, 300) if good else None


def _sent_on(url: str, location: str | None) -> str:
    link = _link(url, location)
    if link is None:
        return f"{url} sends on to an address that is none: is it a flatout site?"
    return (
        f"{url} sends on to {link}. The token is sent nowhere but where you say: if that is the site, use it with --to"
    )


def _limited(reply: httpx.Response) -> bytes:
    parts, size = [], 0
    for part in reply.iter_raw():
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER:
            raise SiteTrouble(f"the site's answer is larger than {MAX_ANSWER:,} bytes: is it a flatout site?")
    return b"".join(parts)


def _packed(parcel: Parcel) -> tuple[dict[str, str], bytes]:
    """Headers and body. The same parcel makes the same bytes."""
    packed = gzip.compress(parcel.record, 9, mtime=0)
    if parcel.samples is None:
        return {"Content-Type": "application/json", "Content-Encoding": "gzip"}, packed
    request = httpx.Request(
        "POST",
        "http://site",
        files={
            "record": ("record.json.gz", packed, "application/gzip"),
            "samples": ("samples.zip", parcel.samples, "application/zip"),
        },
        headers={"Content-Type": f"multipart/form-data; boundary=flatout-{len(packed)}-{_crc(packed, parcel.samples)}"},
    )
    return {"Content-Type": request.headers["Content-Type"]}, request.read()


def _crc(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:24]


def _passing(answer: _Answer) -> bool:
    """A 500 of the site's own has words (problem+json) and comes again; a proxy's has none and may pass."""
    return answer.status != 500 or "problem" not in answer.headers.get("content-type", "")


def _says(answer: _Answer) -> str:
    detail = answer.json().get("detail")
    return f"it answers {answer.status}" + (f", {clean(detail, 300).rstrip('.')}" if detail else "")


def _words(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.ConnectTimeout):
        return "it does not answer within 10 s"
    if isinstance(error, httpx.ConnectError):
        if "CERTIFICATE" in str(error).upper():
            raise SiteTrouble(
                f"the site's certificate cannot be trusted ({clean(error, 200)}); a certificate of your own goes into "
                "SSL_CERT_FILE. Nothing was sent"
            ) from error
        return "nothing answers there"
    if isinstance(error, httpx.TimeoutException):
        return "it does not answer in time"
    return "the connection was lost"


def _good(answer: _Answer, url: str) -> _Answer:
    """The answer, if it is a good one. Raises SiteTrouble with the site's own message."""
    if answer.status < 300:
        return answer
    if answer.status < 400:
        raise SiteTrouble(_sent_on(url, answer.headers.get("location")), answer.status)
    problem = answer.json()
    detail = clean(problem.get("detail") or problem.get("title") or "", 1000)
    place = clean(problem.get("place") or "", 200)
    message = _STATUS.get(answer.status, f"the site answers {answer.status}")
    if detail and answer.status != 401:  # the site says the same of a token as we do
        message += f": {detail}"
    if place and place not in detail:
        message += f" (at {place})"
    if not detail and answer.status == 404:
        message = f"{url} is no flatout site: it has no API there (404)"
    raise SiteTrouble(message, answer.status)


_STATUS: Final = {
    401: "the site does not know this token (it may have been revoked, or have expired, or be another site's)",
    403: "the token does not allow this",
    409: "the site has a reason against it",
    410: "that run is gone",
    413: "the site does not take so much at once",
    422: "the site refuses the record",
}


def _gave_up(url: str, what: str, trouble: str, tries: int, pause: float, *, sending: bool) -> PublishError:
    message = f"{url}: {trouble}"
    if pause > LONGEST_PAUSE_S:
        message += f" and asks to wait {pause:.0f} s"
    elif tries > 1:
        message += f" ({tries} tries)"
    if not sending:
        return SiteTrouble(
            f"{message}. It was only asked {what}; no record was sent. Is the address right, is the site up?"
        )
    return SiteTrouble(
        f"{message}. It is not known whether {what} arrived: publish it again later, the same record is taken once"
    )
