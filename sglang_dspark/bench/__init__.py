"""Timings of this package's kernels, and what can be said of them without a device. See docs/benchmarks.md."""
