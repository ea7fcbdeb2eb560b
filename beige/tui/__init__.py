"""The terminal UI: a client of the HTTP API, and of nothing else of beige."""
