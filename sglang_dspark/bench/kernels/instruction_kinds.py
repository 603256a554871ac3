"""What kind of instruction an AMD mnemonic is: for counting, in a listing or as executed."""

from __future__ import annotations

import re

KINDS = (
    ("vector_load", re.compile(r"(global|flat|buffer)_load")),
    ("vector_store", re.compile(r"(global|flat|buffer)_store")),
    ("lds", re.compile(r"ds_")),
    ("scalar_load", re.compile(r"s_load")),
    ("wait", re.compile(r"s_waitcnt")),
    ("barrier", re.compile(r"s_barrier")),
    ("nop", re.compile(r"s_nop")),
    ("branch", re.compile(r"s_c?branch")),
    ("end", re.compile(r"s_endpgm")),
    ("scalar", re.compile(r"s_")),
    ("vector", re.compile(r"v_")),
)


def kind_of(name: str) -> str:
    """Which kind an instruction of this name is counted as."""
    return next(kind for kind, pattern in KINDS if pattern.match(name))
