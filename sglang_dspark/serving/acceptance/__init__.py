"""How the draft is doing on a running server: counters, answers' meta_info, alarms, and when to stop drafting.

SGLang counts accepted drafts as one mean over all positions and requests. The parts here add what tells a good draft
from a broken one: counts by position, calibration of the confidence head, and warnings. docs/observability.md is the
page for who reads the numbers.
"""
