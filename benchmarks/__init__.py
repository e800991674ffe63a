"""Measurements against vLLM itself; each prints ratios from one run: `python -m benchmarks.run`."""
