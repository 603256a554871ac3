"""An answer ends at the first stop condition that it meets, as it does token by token.

A verify step may accept several tokens. SGLang 0.5.23 (`Req.update_finish_state`) then looks for the stop strings in
the order of the list, over all the new tokens, and only afterwards for stop tokens: an answer that meets one of two
stop strings, or the end-of-sequence token, before the string that is found first goes on to that string. Seen with
`stop=["self", "\\n"]`: text behind the line's end came back. Without speculation the first condition ends the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def around_update_finish_state(original: Callable[..., None], req: Any, new_accepted_len: int = 1) -> None:
    """SGLang's own check, and where it has found an end among several new tokens, whether one comes before it.

    Requests without stop strings need no second look: SGLang takes their stop tokens in order.
    """
    original(req, new_accepted_len)
    sampling = req.sampling_params
    if new_accepted_len < 2 or req.finished_len is None or not (sampling.stop_strs or sampling.stop_regex_strs):
        return
    from sglang.srt.runtime_context import get_spec

    if get_spec().speculative_algorithm == "DSPARK":
        _end_at_the_first(original, req, new_accepted_len)


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
