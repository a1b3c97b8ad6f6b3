"""What `flatout site` and `flatout publish` do with what was typed: words, questions, exit codes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from flatout.publish.client import Published
    from flatout.publish.preview import Preview
    from flatout.publish.samples import Packed
    from flatout.site.settings import Settings

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_STOPPED: Final = 130
_PARTS: Final = (
    "fastapi", "uvicorn", "jinja2", "sqlalchemy", "alembic", "fsspec", "python_multipart", "itsdangerous", "limits",
    "pydantic_settings",
)  # fmt: skip


class HostingError(Exception):
    """What was typed cannot be done here; the text says what to type instead."""


# --- the site -------------------------------------------------------------------------------------------------------


def site(given: Mapping[str, Any]) -> int:
    """`flatout site`: serves until Ctrl-C. Raises HostingError, SiteError."""
    with _operating("stopped before the site had started"):
        settings = _settings(given)
        from flatout.site.serve import start

        start(settings, _say)
    return EXIT_OK


def token_add(given: Mapping[str, Any], name: str, scopes: str, label: str, days: int | None) -> int:
    """`flatout site token add`: the token alone on stdout, so it can go into a file."""
    settings = _settings(given)
    from flatout.site import operate

    with _operating("stopped; no token was made"):
        made = operate.token_add(settings, name, scopes.replace(",", " ").split(), label, days)
    _say(f"a token for {made.name} ({', '.join(made.scopes)}){f', until {made.expires}' if made.expires else ''}.")
    _say("It is shown this once; only its hash is kept:")
    print(made.text)
    return EXIT_OK


def token_list(given: Mapping[str, Any], as_json: bool) -> int:
    """`flatout site token list`: every token, by number, without its text."""
    settings = _settings(given)
    from flatout.site import operate

    with _operating("stopped"):
        rows = operate.token_list(settings)
    if as_json:
        print(json.dumps(rows, indent=1))
        return EXIT_OK
    if not rows:
        print("there are no tokens yet: flatout site token add NAME makes one")
        return EXIT_OK
    columns = list(rows[0])
    table = [columns, *([_shown(row[name]) for name in columns] for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
    for line in table:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    return EXIT_OK


def _shown(value: object) -> str:
    from flatout.show.safe import clean

    return "–" if value in (None, "") else clean(value, 80)


def token_revoke(given: Mapping[str, Any], number: int) -> int:
    """`flatout site token revoke`: the token stops working at once."""
    settings = _settings(given)
    from flatout.site import operate

    with _operating("stopped; look with token list whether the token still works"):
        operate.token_revoke(settings, number)
    _say(f"token {number} is revoked")
    return EXIT_OK


def backup(given: Mapping[str, Any], out: Path) -> int:
    """`flatout site backup`: database and files in one archive."""
    from flatout.show.numbers import size

    settings = _settings(given)
    from flatout.site import operate

    with _operating("stopped; no backup was written"):
        held = operate.backup(settings, out)
    _say(f"{out}: {_count(held.runs, 'run')}, {_count(held.files, 'file')}, {size(out.stat().st_size)}")
    return EXIT_OK


def restore(given: Mapping[str, Any], source: Path) -> int:
    """`flatout site restore`: an empty site out of an archive."""
    settings = _settings(given)
    from flatout.site import operate
    from flatout.site.settings import shown_database

    if not source.is_file():
        raise HostingError(f"there is no file {source}")
    with _operating("stopped; nothing was restored"):
        held = operate.restore(settings, source)
    runs, files = _count(held.runs, "run"), _count(held.files, "file")
    are = "are" if held.runs + held.files != 1 else "is"
    _say(f"{runs} and {files} {are} back, in {shown_database(settings.database_url)}")
    return EXIT_OK


def migrate(given: Mapping[str, Any]) -> int:
    """`flatout site migrate`: the database brought up to this flatout's tables."""
    settings = _settings(given)
    from flatout.site import operate
    from flatout.site.settings import shown_database

    with _operating("stopped; the database is as it was"):
        operate.migrate(settings)
    _say(f"{shown_database(settings.database_url)} is up to date")
    return EXIT_OK


def _settings(given: Mapping[str, Any]) -> Settings:
    """Raises HostingError where the extra is missing, SettingsError where a setting cannot be used."""
    missing = [name for name in _PARTS if find_spec(name) is None]
    if missing:
        raise HostingError(f"the site needs some more packages ({', '.join(missing)}): pip install 'flatout[site]'")
    from flatout.site.settings import make

    settings = make(given)
    if settings.database_url.startswith("postgresql") and find_spec("psycopg") is None:
        raise HostingError("PostgreSQL needs one more package: pip install 'flatout[site,postgres]'")
    return settings


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _operating(stopped: str) -> Iterator[None]:
    """The operator is told the database's own reason, which visitors are not. `stopped`: the words for Ctrl-C.

    Raises HostingError for a database or files that cannot be used.
    """
    from flatout.site.errors import Unavailable

    try:
        yield
    except Unavailable as error:
        from flatout.site.operate import reason

        why = reason(error)
        if why is None:
            raise
        raise HostingError(f"the site's database or files cannot be used: {why}") from error
    except KeyboardInterrupt:
        raise HostingError(stopped) from None


# --- publishing -----------------------------------------------------------------------------------------------------


def publish(
    record: Path,
    *,
    to: str | None,
    token_file: Path | None,
    samples: bool,
    replaces: str | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    insecure_http: bool,
) -> int:
    """`flatout publish`: shows, asks, sends. The link is all that goes to stdout, the rest to stderr.

    Raises PublishError, RecordError; exit code 1 where the site does not answer or refuses, or the answer was no.
    """
    from flatout.publish import address, preview, token
    from flatout.publish.errors import SiteTrouble

    environment = os.environ
    url = address.site(to, environment, insecure_http=insecure_http)
    found = None if dry_run and not _has_token(token_file) else token.find(token_file, environment)
    made = preview.preview(record, preview.redactor(found.text if found else None, environment))
    packed = _samples(record, made) if samples else None
    if dry_run or found is None:
        return _dry_run(made, packed, url, as_json)
    try:
        return _publish(made, packed, url, found.text, replaces=replaces, yes=yes, as_json=as_json)
    except SiteTrouble as error:
        _say(f"flatout: {error}")
        return EXIT_FAILED


def _has_token(file: Path | None) -> bool:
    from flatout.publish import token

    return file is not None or bool(os.environ.get(token.VARIABLE)) or token.default_file(os.environ).exists()


def _samples(record: Path, made: Preview) -> Packed:
    from flatout.publish.samples import pack
    from flatout.record import find

    packed = pack(made.record, find(record).parent)
    if packed.missing:
        _say(f"the samples of {_count(packed.missing, 'cell')} are not beside the record; the others are sent")
    return packed


def _dry_run(made: Preview, packed: Packed | None, url: str, as_json: bool) -> int:
    from flatout.publish.words import preview_text

    if as_json:
        sys.stdout.buffer.write(made.to_send + b"\n")
        sys.stdout.flush()
        return EXIT_OK
    _print(preview_text(made, (packed.files, len(packed.data)) if packed else None, url, None), sys.stdout)
    _print("nothing was sent; with --json, --dry-run prints the JSON that would be\n", sys.stderr)
    return EXIT_OK


def _publish(
    made: Preview, packed: Packed | None, url: str, token: str, *, replaces: str | None, yes: bool, as_json: bool
) -> int:
    from flatout.publish.client import Parcel, Site
    from flatout.publish.words import preview_text

    with Site(url, token, say=_say) as there:
        try:
            me = there.me()
            if "publish" not in me.scopes:
                raise HostingError(
                    f"the token of {me.name} may not publish on {url} (scope: publish). Nothing was sent"
                )
            _print(preview_text(made, (packed.files, len(packed.data)) if packed else None, url, me.name), sys.stderr)
            if not yes and not _agreed():
                _say("nothing was sent")
                return EXIT_FAILED
        except KeyboardInterrupt:
            _say("\nstopped; nothing was sent")
            return EXIT_STOPPED
        try:
            published = there.publish(Parcel(made.to_send, packed.data if packed else None, replaces))
        except KeyboardInterrupt:
            _say("\nstopped while it was sent; it may have arrived. Publishing it again is safe: it is taken once")
            return EXIT_STOPPED
    _tell(made, published, replaces, as_json)
    return EXIT_OK


def _agreed(ask: Callable[[str], str] = input) -> bool:
    """Asks y/N. Raises HostingError where nobody can answer."""
    if not sys.stdin or not sys.stdin.isatty():
        raise HostingError(
            "nobody can be asked here (the input is no terminal): add --yes to publish without a question. Nothing was "
            "sent"
        )
    print("Publish this? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        return ask("").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _tell(made: Preview, published: Published, replaces: str | None, as_json: bool) -> None:
    if as_json:
        told = {
            "id": published.public_id,
            "url": published.url,
            "state": published.state,
            "created": published.created,
            "content_hash": made.content_hash,
            "redacted": [change.place for change in made.changes],
        }
        print(json.dumps(told, indent=1))
        return
    if published.state == "queued":
        _say("a moderator looks at it first; until then only you see it")
        if replaces:
            _say("the run that it replaces stays as it is, public if it was, until this one is approved")
    elif not published.created:
        _say("the site had this very record already")
    print(published.url)


def _print(text: str, stream: Any) -> None:
    """Text on a stream that may not know our signs."""
    from flatout.show.safe import for_encoding

    stream.write(for_encoding(text, getattr(stream, "encoding", None)))
    stream.flush()
