"""Tokens of texts: prompts of exact length by the best count that the server has, and answers that nobody counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from flatout.engines.base import TargetError
from flatout.engines.generic import Adapter
from flatout.engines.probe import Capabilities
from flatout.load.samples import Samples
from flatout.prompts.book import Prompt, PromptBook

SMALL_TOKENS: Final = 48
MOST_ANSWERS: Final = 400
"""Answers of a cell that are counted by a tokenizer after its window."""

Content = str | Sequence[int]
"""What goes into a request: the text, or token ids."""


class TokenizerError(Exception):
    """A `--tokenizer` that cannot be used; the text says why."""


def content_of(prompt: Prompt) -> Content:
    if prompt.token_ids is not None:
        return prompt.token_ids
    assert prompt.text is not None
    return prompt.text


class Prompter:
    """Makes prompts; remembers which way of counting works. `send_count(text)` sends a request of one token and
    returns the server's prompt count, for servers without a tokenizer call."""

    def __init__(
        self,
        book: PromptBook,
        adapter: Adapter,
        capabilities: Capabilities,
        send_count: Callable[[str], int | None],
    ) -> None:
        self.book = book
        self.how: str | None = None
        self.hashes: dict[str, str] = {}
        self.off: set[str] = set()
        self._known = 0
        self._adapter = adapter
        self._capabilities = capabilities
        self._send_count = send_count
        self._fitted: dict[int, Prompt] = {}
        self._count = self._counter()

    def make(self, key: str, tokens: int) -> Prompt:
        """A prompt of `tokens` tokens (the template's included) that was never sent. Raises TargetError, Stopped."""
        prompt = self._ids(key, tokens) or self._counted(key, tokens) or self._sent(key, tokens)
        self.hashes[key] = prompt.sha256
        return prompt

    def used(self, key: str, prompt: Prompt) -> None:
        """Notes a prompt that is really measured, with the server's count where it gave one."""
        self._known += prompt.exact is not None and prompt.counted_by != "sibling_usage"
        if prompt.exact is False:
            self.off.add(key)

    def exact(self) -> bool | None:
        """Whether every prompt that was measured was as long as asked; None where the server counted none of them."""
        return not self.off if self._known else None

    def distrust(self) -> bool:
        """Counts no longer by the server's tokenizer call, which its usage contradicts; False if it did not anyway."""
        before, self._count = self._count, None
        self.book.forget_counts()
        return before is not None

    def small(self) -> Content:
        """A short new prompt for probes, about SMALL_TOKENS tokens long, uncounted."""
        return content_of(self.book.counted_prompt("small", SMALL_TOKENS, lambda _: None))

    def _counter(self) -> Callable[[str], int | None] | None:
        """The cheapest exact counter that the server has, tried once; None if it has none."""
        text = "How many tokens are these few words?"
        try:
            if self._capabilities.api == "chat" and self._adapter.count_chat_tokens(text) is not None:
                return self._adapter.count_chat_tokens
            extra = self._capabilities.template_tokens
            if extra is not None and self._adapter.count_tokens(text) is not None:
                return lambda t: None if (n := self._adapter.count_tokens(t)) is None else n + extra
        except TargetError:
            return None
        return None

    def _ids(self, key: str, tokens: int) -> Prompt | None:
        if self._capabilities.api != "completions" or not self._capabilities.token_prompts:
            return None
        try:
            prompt = self.book.ids_prompt(key, tokens, self._adapter.tokenize)
        except (ValueError, TargetError):
            return None
        self.how = "token ids"
        return prompt

    def _counted(self, key: str, tokens: int) -> Prompt | None:
        if self._count is None:
            return None
        prompt = self.book.counted_prompt(key, tokens, self._count)
        if prompt.counted_tokens is None:
            return None
        self.how = "the server's tokenizer call"
        return prompt

    def _sent(self, key: str, tokens: int) -> Prompt:
        """Fitted on siblings that are sent (three at most a length); later prompts of that length are siblings too."""
        self.how = "usage of sibling prompts"
        if tokens not in self._fitted:
            self._fitted[tokens] = self.book.sent_prompt(key, tokens, self._send_count)
            return self._fitted[tokens]
        return self.book.sibling(self._fitted[tokens])


def tokenizer_file(path: Path) -> Callable[[str], int]:
    """A counter from a Hugging Face `tokenizer.json` (whole text, no special tokens). Raises TokenizerError."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise TokenizerError("--tokenizer needs the package tokenizers: pip install tokenizers") from error
    try:
        tokenizer: Any = Tokenizer.from_file(str(path))
    except Exception as error:
        raise TokenizerError(f"{path} is no tokenizer.json: {error}") from error
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def recount(samples: Samples, count: Callable[[str], int | None]) -> dict[int, int] | None:
    """Tokens of each answer's whole text, by its request, for servers that count nothing themselves; None where the
    server counted, or where `count` cannot. At most MOST_ANSWERS answers."""
    if samples.texts is None or bool((samples.completion_tokens >= 0).any()):
        return None
    if len(samples.running_tokens) and bool((samples.running_tokens >= 0).any() or (samples.id_tokens >= 0).any()):
        return None
    counts: dict[int, int] = {}
    for request, text in enumerate(samples.texts[:MOST_ANSWERS]):
        try:
            tokens = count(text) if text else 0
        except TargetError:
            tokens = None
        if tokens is None:
            break
        if text:
            counts[request] = tokens
    return counts or None
