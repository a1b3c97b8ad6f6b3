"""How many files, and so connections, this machine lets a process open."""

from __future__ import annotations

from typing import Final

SPARE_FILES: Final = 16
"""Files open besides two connections a stream: the parent, the poller, a look-up, what is being closed."""


def most_streams(processes: int) -> int | None:
    """Streams that so many load processes can carry: each may need a second connection for its next request. None
    where the system sets no limit or tells none."""
    try:
        import resource
    except ImportError:
        return None
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else processes * max(0, (hard - SPARE_FILES) // 2)


def allow_files(wanted: int) -> None:
    """Raises this process's limit of open files so that `wanted` fit. Raises ValueError if the system forbids it."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ValueError(
            f"{wanted} open files are needed for this many connections, and the system allows {hard}: raise the hard "
            "limit (`ulimit -Hn`), or ask for fewer requests at once"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
