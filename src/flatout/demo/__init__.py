"""The embedded engine: llama.cpp's own server with a random-weight hybrid model, for `flatout demo` and our tests."""
