"""How well a draft does: accepted lengths by data set and position, and how far its confidences can be believed.

Judges are a running server, asked over HTTP, or the plain PyTorch reference. SGLang is never imported here: its own
tools (the temperature fitter and the step-cost profiler) run as processes of their own.
"""
