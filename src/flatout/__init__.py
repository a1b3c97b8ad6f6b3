"""flatout: the speed test for LLM servers."""

__version__ = "0.1.0"
