"""What a site is started with, and which of it would be unsafe in public."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

MEGABYTE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """`data_dir` holds what is not given elsewhere (database, files, secret, rendered pages). `base_url`: how others
    reach the site, without a slash at its end. `results_dir`: local results that are picked up by themselves. `secret`
    signs cookies and cursors. Limits per hour count publishing, reports and new tokens; those per minute everything
    else; 0 is none. `proxies`: addresses whose X-Forwarded-* headers are believed."""

    data_dir: Path
    database_url: str
    files_url: str
    secret: str
    base_url: str = "http://127.0.0.1:8321"
    host: str = "127.0.0.1"
    port: int = 8321
    title: str = "flatout"
    results_dir: Path | None = None
    public: bool = False
    debug: bool = False
    registration: Literal["closed", "open"] = "closed"
    moderation: Literal["open", "queue"] = "open"
    publish_per_hour: int = 60
    requests_per_minute: int = 600
    max_body_bytes: int = 4 * MEGABYTE
    max_record_bytes: int = 32 * MEGABYTE
    max_samples_bytes: int = 64 * MEGABYTE
    proxies: tuple[str, ...] = ()

    @property
    def secure(self) -> bool:
        """Reached over HTTPS: cookies are sent there only."""
        return self.base_url.startswith("https://")
