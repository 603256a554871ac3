"""An answer ends at the first stop condition that it meets, as it does token by token.

A verify step may accept several tokens. SGLang 0.5.23 (`Req.update_finish_state`) then looks for the stop strings in
the order of the list, over all the new tokens, and only afterwards for stop tokens: an answer that meets one of two
stop strings, or the end-of-sequence token, before the string that is found first goes on to that string. Seen with
`stop=["self", "\\n"]`: text behind the line's end came back. Without speculation the first condition ends the answer.
An abort that meets such a step returned all its tokens, more than were asked for, or tokens behind a stop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def around_update_finish_state(original: Callable[..., None], req: Any, new_accepted_len: int = 1) -> None:
    """SGLang's own check, and where it has found an end among several new tokens, whether one comes before it."""
    from sglang.srt.runtime_context import get_spec

    if new_accepted_len < 2 or req.finished() or get_spec().speculative_algorithm != "DSPARK":
        original(req, new_accepted_len)
        return
    # An abort is taken without a look at the new tokens, of which some may lie behind the answer's end.
    abort, req.to_finish = req.to_finish, None
    original(req, new_accepted_len)
    sampling = req.sampling_params
    # Without stop strings SGLang takes the stop tokens in order.
    if req.finished_len is not None and (sampling.stop_strs or sampling.stop_regex_strs):
        _end_at_the_first(original, req, new_accepted_len)
    if abort is not None:
        req.finished_reason = abort


def _end_at_the_first(original: Callable[..., None], req: Any, new_accepted_len: int) -> None:
    found = req.finished_reason, req.finished_len
    # A string beyond the last token that was asked for became an end by length: that very token may be a stop, too.
    last = req.finished_len if req.finished_reason.to_json()["type"] == "length" else req.finished_len - 1
    tokens, grammar = req.output_ids, req.grammar
    # The grammar has seen all the new tokens already: whether it is complete says nothing about a part of them.
    req.grammar = None
    try:
        for length in range(len(tokens) - new_accepted_len + 1, last + 1):
            req.output_ids, req.finished_reason, req.finished_len = tokens[:length], None, None
            original(req, 1)
            if req.finished_reason is not None:
                return
        req.finished_reason, req.finished_len = found
    finally:
        req.output_ids, req.grammar = tokens, grammar
