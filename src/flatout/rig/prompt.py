"""A prompt as the server keeps it, and the prefix cache: which prompts' blocks are known, with a limited room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from flatout.rig.tokens import token_id

_GRANULE = 16


@dataclass(slots=True)
class Prompt:
    """Its length and the chained hashes of its blocks."""

    tokens: int
    granule: int  # tokens a block hash covers
    hashes: list[int] = field(default_factory=list)  # one for each full granule, then one for the rest if there is one
    key: int = 0  # the same for equal prompts
    ids: list[int] | None = None  # kept only where a request asked for them


def granule_for(block_tokens: int) -> int:
    """Tokens in one hash: the cache's block where it is at least 16, else 16 (the rest of a prompt has its own)."""
    return block_tokens if block_tokens >= _GRANULE else _GRANULE


def hash_in_slices(
    parts: Iterable[Sequence[str] | Sequence[int]], granule: int, *, keep_ids: bool = False
) -> Iterator[Prompt | None]:
    """Yields None after each slice of work and the Prompt at the end."""
    prompt = Prompt(tokens=0, granule=granule, ids=[] if keep_ids else None)
    chain = 0
    rest: list[str | int] = []
    for part in parts:
        prompt.tokens += len(part)
        if prompt.ids is not None:
            prompt.ids.extend(token_id(item) if isinstance(item, str) else item for item in part)
        rest.extend(part)
        full = len(rest) - len(rest) % granule
        for at in range(0, full, granule):
            chain = hash((chain, *rest[at : at + granule]))
            prompt.hashes.append(chain)
        del rest[:full]
        yield None
    if rest:
        chain = hash((chain, *rest))
        prompt.hashes.append(chain)
    prompt.key = hash((chain, prompt.tokens))
    yield prompt


class PrefixCache:
    """Whole prompts are kept and dropped (least recently used first); blocks that prompts share count once.

    `after_sends`: a prompt enters only when it has been prefilled so often (some hybrids cache at the second time).
    """

    def __init__(self, *, enabled: bool, block_tokens: int, room_tokens: int | None, after_sends: int) -> None:
        self._enabled = enabled
        self._block = block_tokens
        self._room = room_tokens
        self._after = after_sends
        self._prompts: OrderedDict[int, Prompt] = OrderedDict()
        self._holders: dict[int, int] = {}  # block hash -> number of kept prompts that have it
        self._sends: dict[int, int] = {}
        self.tokens = 0

    def cached_tokens(self, prompt: Prompt) -> int:
        """How many tokens of the prompt need no prefill: a multiple of the block, and never the whole prompt."""
        if not self._enabled or not prompt.hashes:
            return 0
        # Kept blocks form whole prefixes, so the longest known prefix is found by halving.
        low, high = 0, len(prompt.hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if prompt.hashes[middle - 1] in self._holders:
                low = middle
            else:
                high = middle - 1
        known = min(low * prompt.granule, prompt.tokens - 1)
        return known - known % self._block

    def insert(self, prompt: Prompt) -> None:
        """Note that the prompt was prefilled."""
        if not self._enabled:
            return
        if prompt.key in self._prompts:
            self._prompts.move_to_end(prompt.key)
            return
        sends = self._sends[prompt.key] = self._sends.get(prompt.key, 0) + 1
        if sends < self._after or (self._room is not None and prompt.tokens > self._room):
            return
        self._prompts[prompt.key] = prompt
        for value, size in _blocks(prompt):
            if value not in self._holders:
                self.tokens += size
            self._holders[value] = self._holders.get(value, 0) + 1
        while self._room is not None and self.tokens > self._room:
            self._drop(self._prompts.popitem(last=False)[1])

    def _drop(self, prompt: Prompt) -> None:
        for value, size in _blocks(prompt):
            self._holders[value] -= 1
            if not self._holders[value]:
                del self._holders[value]
                self.tokens -= size

    def clear(self) -> None:
        """Forget everything, the counts of sends included."""
        self._prompts.clear()
        self._holders.clear()
        self._sends.clear()
        self.tokens = 0


def _blocks(prompt: Prompt) -> list[tuple[int, int]]:
    full, rest = divmod(prompt.tokens, prompt.granule)
    sizes = [prompt.granule] * full + ([rest] if rest else [])
    return list(zip(prompt.hashes, sizes, strict=True))
