"""Where SGLang 0.5.23 cannot verify a draft of a MiniMax-M3 target with block-sparse layers: refused at start.

Read from `sglang.srt.layers.attention.minimax_sparse_backend`, not seen on a device. On CUDA its generic backend takes
a verify batch for a prefill and reads `extend_seq_lens`, which such a batch does not have; only the NVFP4 stack on
Blackwell has verify metadata. On ROCm it repeats every request by one width, so the uneven widths of compact verify
raise. Cap-accept verifies at one width too (`DSparkVerifyPlanner.should_run_compact`) and caps what is accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_dspark.platforms import Platform

COMPACT, STATIC = "compact", "static"


def refusal(platform: Platform, *, sparse: bool, native_nvfp4: bool, verify_mode: str) -> str | None:
    """Why this target cannot be verified here; None when it can.

    Args:
        platform: of this process.
        sparse: the target has block-sparse attention layers.
        native_nvfp4: the target runs SGLang's NVFP4 stack for Blackwell.
        verify_mode: SGLANG_RAGGED_VERIFY_MODE.
    """
    if not sparse or platform.name == "cpu":
        return None
    if platform.name == "nvidia" and not native_nvfp4:
        return (
            "asked for DSPARK with a block-sparse MiniMax-M3 on CUDA, found a checkpoint other than NVFP4 on "
            "Blackwell: SGLang 0.5.23 has no verify metadata for it and would crash at the first verify step; serve "
            "the NVFP4 checkpoint on Blackwell, any on AMD Instinct, or leave out --speculative-algorithm"
        )
    if platform.name == "amd" and verify_mode == COMPACT:
        return (
            f"asked for SGLANG_RAGGED_VERIFY_MODE={verify_mode} with a block-sparse MiniMax-M3 on ROCm: SGLang "
            "0.5.23's backend there verifies every request of a batch at one width; set "
            f"SGLANG_RAGGED_VERIFY_MODE={STATIC}"
        )
    return None


def check(model_config: Any, current_platform: Callable[[], Platform]) -> None:
    """Raise unless the target of `model_config` (SGLang's ModelConfig) can be verified on this platform.

    The platform is asked for only where the target is ours: it does not know every machine that other targets run on.

    Raises:
        RuntimeError: with what was asked, what was found and what to do.
    """
    from sglang.srt.configs.model_config import (
        get_minimax_sparse_attention_config,
        get_minimax_sparse_layer_ids,
        is_minimax_sparse,
        uses_minimax_m3_nvfp4_native_stack,
    )
    from sglang.srt.speculative.ragged_verify import read_ragged_verify_mode

    hf_config = model_config.hf_config
    if not is_minimax_sparse(hf_config):
        return
    reason = refusal(
        current_platform(),
        sparse=bool(get_minimax_sparse_layer_ids(get_minimax_sparse_attention_config(hf_config))[1]),
        native_nvfp4=uses_minimax_m3_nvfp4_native_stack(model_config.quantization),
        verify_mode=read_ragged_verify_mode().value,
    )
    if reason:
        raise RuntimeError(reason)
