"""The magic in real kernels, saved notebooks, a real browser, and the demo notebook."""
