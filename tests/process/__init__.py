"""Real worker processes with the echo engine, through `Session` and plain scripts."""
