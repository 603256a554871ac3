"""Fused operations, each with a plain torch reference and one module a backend. Nothing here imports SGLang."""
