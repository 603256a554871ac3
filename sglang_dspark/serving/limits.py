"""Ways of serving that a MiniMax-M3 target with this draft does not have: refused where SGLang resolves its arguments.

SGLang 0.5.23 refuses some of them for every DSPARK server, some for none. What it lets pass and is not refused here
is served, and tested; what is refused here would end in a crash, in wrong draft K/V, or has never been seen to work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

MODEL_DTYPES = (torch.bfloat16, torch.float32)
_ALONE = "leave it out, or leave out --speculative-algorithm"


class Refused(ValueError):
    """The server cannot be started this way; the message lists every reason."""

    def __init__(self, reasons: list[str]) -> None:
        """Put all reasons into one message."""
        self.reasons = reasons
        lines = "".join(f"\n  - {reason}" for reason in reasons)
        super().__init__(f"sglang-dspark cannot serve a MiniMax-M3 draft this way:{lines}")


def check(arguments: Any, model_dtype: torch.dtype, *, e5m2_means_e4m3: bool) -> None:
    """Raise unless the draft can be served with these arguments.

    Args:
        arguments: SGLang's, as far as they are resolved.
        model_dtype: what the target computes in; the draft follows it.
        e5m2_means_e4m3: SGLang takes its platform's own fp8 format for "fp8_e5m2", as it does on ROCm.

    Raises:
        Refused: with every reason at once.
    """
    reasons = [*_parallel(arguments), *_precision(arguments, model_dtype, e5m2_means_e4m3), *_rest(arguments)]
    if reasons:
        raise Refused(reasons)


def _parallel(arguments: Any) -> Iterator[str]:
    if arguments.dcp_size > 1:
        yield (
            f"--dcp-size {arguments.dcp_size}: decode context parallelism keeps a token's K and V on one rank of the "
            f"group, and both the draft's ops and SGLang's block-sparse attention store and read whole rows; {_ALONE}"
        )
    if arguments.attn_cp_size > 1 or arguments.enable_prefill_cp:
        yield (
            f"--attn-cp-size {arguments.attn_cp_size} / --enable-prefill-cp: attention context parallelism gives a "
            f"rank the target's hidden states of a part of the prompt, and the draft's context needs them all; {_ALONE}"
        )
    if arguments.attn_dp_size > 1:
        yield (
            f"--attn-dp-size {arguments.attn_dp_size}: attention data parallelism pads batches between ranks and runs "
            "the draft in a group of its own, which this plugin has never been seen doing; use --tp-size, or --dp-size "
            "for whole replicas"
        )
    if arguments.pp_size > 1:
        yield (
            f"--pp-size {arguments.pp_size}: the draft reads hidden states of layers on several pipeline stages, and "
            "SGLang hands them on for disaggregated prefill only; use --tp-size instead"
        )


def _precision(arguments: Any, model_dtype: torch.dtype, e5m2_means_e4m3: bool) -> Iterator[str]:
    if model_dtype not in MODEL_DTYPES:
        yield (
            f"--dtype {str(model_dtype).removeprefix('torch.')}: the draft's ops are written for bfloat16, and float32 "
            "on a CPU; use --dtype bfloat16"
        )
    pool = arguments.speculative_draft_kv_cache_dtype or arguments.kv_cache_dtype
    if pool == "fp8_e5m2" and not e5m2_means_e4m3:
        yield (
            "fp8_e5m2 for the draft's KV pool: its ops store fp8_e4m3, which keeps a bit more of each value; use "
            "--speculative-draft-kv-cache-dtype fp8_e4m3 or bf16 (the target's pool may stay as it is)"
        )


def _rest(arguments: Any) -> Iterator[str]:
    if arguments.disaggregation_mode != "null":
        yield (
            f"--disaggregation-mode {arguments.disaggregation_mode}: the draft's K and V would have to travel with the "
            "target's, which this plugin has never been seen doing; serve prefill and decode together, or without "
            "--speculative-algorithm"
        )
    if arguments.enable_lora or arguments.lora_paths:
        yield (
            "--enable-lora / --lora-paths: adapters change the hidden states that the draft was trained on, and no "
            "server with both has been seen to work (SGLang's adapter layers need pinned memory, which the CPU engine "
            f"does not have); {_ALONE}"
        )
    if arguments.speculative_draft_window_size is not None:
        yield (
            f"--speculative-draft-window-size {arguments.speculative_draft_window_size}: DSPARK does not read it, and "
            "the draft was trained to see its whole context; leave it out"
        )
