"""The site's files in S3: its real client, against a server on this machine that speaks it."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import fsspec  # type: ignore[import-untyped]
import pytest
from moto.server import ThreadedMotoServer

from flatout.site import blobs as blobs_module
from flatout.site.blobs import RECORDS, Blobs
from flatout.site.errors import NotFound, Unavailable
from tests import site_records
from tests.site_client import opened

BUCKET = "bucket"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def url(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of its own in the bucket."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": endpoint})
    client(endpoint).create_bucket(Bucket=BUCKET)
    return f"s3://{BUCKET}/{tmp_path.name}"


def client(endpoint: str) -> Any:
    return boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1"
    )


def test_files_are_put_read_swept_and_deleted(url: str) -> None:
    blobs = Blobs.open(url)
    data = b"{}" * 500
    name = blobs.put(RECORDS, data)
    assert name == hashlib.sha256(data).hexdigest() == blobs.put(RECORDS, data)
    assert blobs.get(RECORDS, name) == data and blobs.has(RECORDS, name) and len(blobs.raw(RECORDS, name)) < 100
    with pytest.raises(NotFound):
        blobs.get(RECORDS, "0" * 64)
    assert blobs.sweep(lambda _kind, _name: False, 3600) == 0
    zipped = blobs.put("samples", b"zip")
    assert blobs.sweep(lambda kind, _name: kind == RECORDS, -5) == 1
    assert blobs.has(RECORDS, name) and not blobs.has("samples", zipped)
    blobs.delete(RECORDS, name)
    blobs.delete(RECORDS, name)
    assert not blobs.has(RECORDS, name)


def test_what_another_process_does_is_seen_at_once(url: str, endpoint: str) -> None:
    """No list of files from before is believed: a file that was put again meanwhile would be swept."""
    blobs = Blobs.open(url)
    name = blobs.put(RECORDS, b"{}")
    assert blobs.sweep(lambda _kind, _name: False, 3600) == 0  # which lists all
    (key,) = [one["Key"] for one in client(endpoint).list_objects_v2(Bucket=BUCKET, Prefix=url[12:])["Contents"]]
    client(endpoint).delete_object(Bucket=BUCKET, Key=key)
    assert not blobs.has(RECORDS, name)
    client(endpoint).put_object(Bucket=BUCKET, Key=key, Body=b"x")
    assert blobs.has(RECORDS, name)


def test_a_site_with_its_files_there(url: str, tmp_path: Path) -> None:
    site = opened(tmp_path, files_url=url)
    try:
        body = site_records.body(1)
        made = site.publish(body, site.token())
        assert made.status_code == 201, made.text
        run = made.json()["id"]
        got = site.http.get(f"/r/{run}/record.json")
        assert got.status_code == 200 and hashlib.sha256(got.content).hexdigest() == made.json()["content_hash"]
        assert site.site.store.sweep(-5) == 0
        assert not (tmp_path / "files").exists()
    finally:
        site.close()


def test_the_environment_names_the_server_as_the_docs_say(url: str, endpoint: str) -> None:
    code = "import sys; from flatout.site.blobs import Blobs; print(Blobs.open(sys.argv[1]).put('records', b'{}'))"
    told = {**os.environ, **KEYS, "FSSPEC_S3_ENDPOINT_URL": endpoint}
    made = subprocess.run(
        [sys.executable, "-c", code, url], env=told, capture_output=True, text=True, timeout=60, check=True
    )
    assert Blobs.open(url).get(RECORDS, made.stdout.strip()) == b"{}"


def test_a_server_that_says_nothing_is_not_waited_for_long(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs_module, "ANSWER_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": f"http://127.0.0.1:{silent.getsockname()[1]}"})
        site = opened(tmp_path, files_url=url)
        try:
            begun = time.monotonic()
            made = site.publish(site_records.body(1), site.token())
            assert made.status_code == 503 and time.monotonic() - begun < 20, "left alone, it waits for two minutes"
            with pytest.raises(Unavailable):
                Blobs.open(url).has(RECORDS, "0" * 64)
            assert site.http.get("/api/v1/runs").json()["runs"] == []
        finally:
            site.close()
