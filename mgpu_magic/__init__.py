"""Run language models on every GPU of a notebook machine."""
