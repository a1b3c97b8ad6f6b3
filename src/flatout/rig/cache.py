"""The prefix cache: which prompts' blocks are known, with a limited room."""

from __future__ import annotations

from collections import OrderedDict

from flatout.rig.tokens import Prompt


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
