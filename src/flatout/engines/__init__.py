"""The engines, one file each: `vllm.py` has the class `Vllm`: how it is recognised, its programs, port and questions.

A new engine is one new file, and its name in this line."""

from typing import Final

ENGINES: Final = ("sglang", "vllm", "llamacpp", "transformers", "ollama", "generic")
"""In the order in which their own endpoints are asked for; the last one takes every other server."""
