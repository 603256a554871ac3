"""Requests whose answer under speculation would not be the target's own are refused with the reason.

SGLang 0.5.23's DSPARK verify applies penalties to the whole verify window or not at all, and never counts the tokens
accepted (`ScheduleBatch.prepare_for_decode` returns before that). min_new_tokens is a penalty there: seen ignored, with
overlap scheduling and without. min_p is left out of sampled verification. All change the answer without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Sampling parameter -> its neutral value.
_NEUTRAL = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0}


def refusal(sampling_params: Any) -> str | None:
    """Why a request cannot be served losslessly with DSPARK; None when it can.

    Args:
        sampling_params: SGLang's, normalised: temperature 0 has become top_k 1.
    """
    found = {name: getattr(sampling_params, name) for name in _NEUTRAL}
    asked = [f"{name}={found[name]}" for name, neutral in _NEUTRAL.items() if found[name] != neutral]
    if asked:
        return (
            f"{', '.join(asked)}: penalties count every token, and DSPARK verifies several at once with the same "
            "penalty, so the answer would not be the model's own. Leave them out, or use a server without speculation."
        )
    if sampling_params.min_p > 0 and sampling_params.top_k != 1:
        return (
            f"min_p={sampling_params.min_p}: SGLang's DSPARK does not apply min_p when it verifies samples. Use top_p "
            "or top_k, or a server without speculation."
        )
    return None


def around_validate_dflash_request(
    original: Callable[[Any, bool], str | None], req: Any, enable_overlap: bool
) -> str | None:
    """SGLang's own reasons first, then ours for DSPARK; DFLASH shares the function."""
    from sglang.srt.runtime_context import get_spec

    from sglang_dspark.serving.acceptance import setup as acceptance

    reason = original(req, enable_overlap)
    if reason is None and get_spec().speculative_algorithm == "DSPARK":
        reason = refusal(req.sampling_params) or acceptance.request_refusal(req.sampling_params)
    return reason
