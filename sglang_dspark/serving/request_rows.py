"""Room in SGLang's request table for the verify windows at the end of the context.

A row of the table (`req_to_token`) names the slots of one request. A decode step reserves two windows behind the
tokens committed so far, and SGLang 0.5.23 gives a row the context length and one window plus 4, at page size 1. With
blocks of 7 drafted tokens and more, the last steps before the context's end enter slots behind the row: in the first
columns of the next row, another request's first tokens, without a word on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable


def around_extra_context_len(original: Callable[[], int]) -> int:
    """SGLang's columns beyond the context length, and as many as a DSPARK decode step reserves."""
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_page_size, get_alloc_reserve_per_decode
    from sglang.srt.runtime_context import get_spec

    extra = original()
    if (get_spec().speculative_algorithm or "").upper() != "DSPARK":
        return extra
    return max(extra, get_alloc_reserve_per_decode() + get_alloc_page_size() - 1)
