"""Rows of the request table hold the two windows that a decode step reserves behind the last token of the context."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_dspark.serving.request_rows import around_extra_context_len


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("block_size", [*range(1, 32)])
def test_the_last_step_fits_into_its_row(monkeypatch, block_size: int, page_size: int) -> None:
    """Fault 19. SGLang's own sizing, and its own reservation at the last token but one of the longest request."""
    from sglang.srt.mem_cache import allocation_sizing

    spec = SimpleNamespace(
        speculative_algorithm="DSPARK",
        speculative_num_steps=1,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=block_size + 1,
    )
    for module in (allocation_sizing, __import__("sglang.srt.runtime_context", fromlist=["get_spec"])):
        monkeypatch.setattr(module, "get_spec", lambda: spec)
    monkeypatch.setattr(allocation_sizing, "max_speculative_num_draft_tokens", lambda: block_size + 1)
    monkeypatch.setattr(allocation_sizing, "get_alloc_page_size", lambda: page_size)

    context_len, width = 192, 192 + around_extra_context_len(allocation_sizing.get_req_to_token_extra_context_len)
    for committed in range(context_len):
        request = SimpleNamespace(kv=SimpleNamespace(kv_allocated_len=committed, kv_committed_len=committed))
        _, (end,), _ = allocation_sizing.page_aligned_decode_alloc_lens(
            [request], reserve=2 * (block_size + 1), page_size=page_size
        )
        assert end <= width, f"{end} columns reserved in a row of {width}"


def test_sglang_s_own_rows_are_too_short_for_it(monkeypatch) -> None:
    """Where this fails, SGLang has made room itself, and the hook may go."""
    from sglang.srt.mem_cache import allocation_sizing

    monkeypatch.setattr(allocation_sizing, "get_spec", lambda: SimpleNamespace(speculative_algorithm="DSPARK"))
    monkeypatch.setattr(allocation_sizing, "max_speculative_num_draft_tokens", lambda: 8)
    monkeypatch.setattr(allocation_sizing, "get_alloc_page_size", lambda: 1)
    # A request of context_len - 3 tokens is not at its end: the longest has context_len - 1.
    assert -3 + 2 * 8 > allocation_sizing.get_req_to_token_extra_context_len() == 12


def test_other_algorithms_keep_sglang_s_rows(monkeypatch) -> None:
    from sglang.srt import runtime_context

    monkeypatch.setattr(runtime_context, "get_spec", lambda: SimpleNamespace(speculative_algorithm=None))
    assert around_extra_context_len(lambda: 4) == 4
