"""`flatout publish`: shows what will be sent, asks, sends. The link is all that goes to stdout, the rest to stderr."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from flatout.cli.options import EXIT_FAILED, EXIT_OK, UseError, command, count, flag, option, say, sorry, write
from flatout.cli.results import Result

if TYPE_CHECKING:
    from flatout.publish.client import Published
    from flatout.publish.preview import Packed, Preview

EXIT_STOPPED: Final = 130


@command
def publish(
    record: Result,
    to: Annotated[
        str | None, option("The site (default: FLATOUT_SITE, else http://127.0.0.1:8321).", "URL", "--to")
    ] = None,
    token_file: Annotated[
        Path | None,
        option("File with the token (default: FLATOUT_TOKEN, else ~/.config/flatout/token).", "FILE"),
    ] = None,
    samples: Annotated[bool, flag("Send the samples, too: each request's stamps.", "--samples")] = False,
    replaces: Annotated[str | None, option("A run of yours that this one corrects.", "ID")] = None,
    yes: Annotated[bool, flag("Do not ask.", "--yes", "-y")] = False,
    dry_run: Annotated[bool, flag("Show what would be sent; ask and send nothing.", "--dry-run")] = False,
    json_output: Annotated[
        bool, flag("The answer as JSON; with --dry-run, the JSON that would be sent.", "--json")
    ] = False,
    insecure_http: Annotated[
        bool, flag("Send the token over plain HTTP to another machine.", "--insecure-http")
    ] = False,
) -> int:
    """Publish a run: shows exactly what will be sent, asks, and prints the link."""
    from flatout.publish import destination
    from flatout.publish.preview import preview, redactor

    url = destination.site_url(to, os.environ, insecure_http=insecure_http)
    wanted = not dry_run or destination.has_token(token_file, os.environ)
    token = destination.find_token(token_file, os.environ) if wanted else None
    content = preview(record, redactor(token, os.environ))
    packed = _packed(record, content) if samples else None
    if dry_run or token is None:
        return _dry_run(content, packed, url, json_output)
    try:
        return _publish(content, packed, url, token, replaces=replaces, yes=yes, as_json=json_output)
    except destination.SiteTrouble as error:
        return sorry(error, EXIT_FAILED)


def _packed(record: Path, content: Preview) -> Packed:
    from flatout.publish.preview import pack_samples
    from flatout.record import find

    packed = pack_samples(content.record, find(record).parent)
    if packed.missing:
        say(f"the samples of {count(packed.missing, 'cell')} are not beside the record; the others are sent")
    return packed


def _dry_run(content: Preview, packed: Packed | None, url: str, as_json: bool) -> int:
    from flatout.publish.preview import preview_text

    if as_json:
        sys.stdout.buffer.write(content.to_send + b"\n")
        sys.stdout.flush()
        return EXIT_OK
    write(preview_text(content, packed, url, None), sys.stdout)
    write("nothing was sent; with --json, --dry-run prints the JSON that would be\n", sys.stderr)
    return EXIT_OK


def _publish(
    content: Preview, packed: Packed | None, url: str, token: str, *, replaces: str | None, yes: bool, as_json: bool
) -> int:
    from flatout.publish.client import Parcel, Site
    from flatout.publish.preview import preview_text

    with Site(url, token, say=say) as site:
        try:
            me = site.me()
            if "publish" not in me.scopes:
                raise UseError(f"the token of {me.name} may not publish on {url} (scope: publish). Nothing was sent")
            write(preview_text(content, packed, url, me.name), sys.stderr)
            if not yes and not _agreed():
                say("nothing was sent")
                return EXIT_FAILED
        except KeyboardInterrupt:
            say("\nstopped; nothing was sent")
            return EXIT_STOPPED
        try:
            published = site.publish(Parcel(content.to_send, packed.data if packed else None, replaces))
        except KeyboardInterrupt:
            say("\nstopped while it was sent; it may have arrived. Publishing it again is safe: it is taken once")
            return EXIT_STOPPED
    _print(content, published, replaces, as_json)
    return EXIT_OK


def _agreed() -> bool:
    """Asks y/N. Raises UseError where nobody can answer."""
    if not sys.stdin or not sys.stdin.isatty():
        raise UseError(
            "nobody can be asked here (the input is no terminal): add --yes to publish without a question. Nothing was "
            "sent"
        )
    print("Publish this? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        return input().strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _print(content: Preview, published: Published, replaces: str | None, as_json: bool) -> None:
    if as_json:
        answer = {
            "id": published.public_id,
            "url": published.url,
            "state": published.state,
            "created": published.created,
            "content_hash": content.content_hash,
            "redacted": [change.place for change in content.changes],
        }
        print(json.dumps(answer, indent=1))
        return
    if published.state == "queued":
        say("a moderator looks at it first; until then only you see it")
        if replaces:
            say("the run that it replaces stays as it is, public if it was, until this one is approved")
    elif not published.created:
        say("the site had this very record already")
    print(published.url)
