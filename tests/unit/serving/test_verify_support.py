"""What SGLang cannot verify ends at start with a reason, not at the first request in a crash."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_dspark import platforms
from sglang_dspark.serving.verify_support import check, refusal

AMD, NVIDIA, CPU = (
    platforms.describe("amd", "gfx942"),
    platforms.describe("nvidia", "sm_90"),
    platforms.describe("cpu", "cpu"),
)


@pytest.mark.parametrize(
    ("platform", "sparse", "native_nvfp4", "mode", "words"),
    [
        (AMD, True, False, "static", None),
        (AMD, True, False, "compact", "SGLANG_RAGGED_VERIFY_MODE=static"),
        # Only the accepted length is capped: the batch is verified at one width.
        (AMD, True, False, "cap-accept", None),
        (AMD, False, False, "compact", None),
        (NVIDIA, True, False, "static", "NVFP4"),
        (NVIDIA, True, True, "static", None),
        (NVIDIA, False, False, "static", None),
        (CPU, True, False, "compact", None),
    ],
)
def test_refusals(platform, sparse, native_nvfp4, mode, words) -> None:
    """A refusal too many keeps a working server down; one too few crashes it at the first verify step."""
    reason = refusal(platform, sparse=sparse, native_nvfp4=native_nvfp4, verify_mode=mode)
    assert (reason is None) == (words is None)
    assert words is None or words in reason


def model_config(architecture: str, freq: list[int]) -> SimpleNamespace:
    text = SimpleNamespace(sparse_attention_config={"sparse_attention_freq": freq})
    return SimpleNamespace(hf_config=SimpleNamespace(architectures=[architecture], text_config=text), quantization=None)


def unknown() -> platforms.Platform:
    raise platforms.UnsupportedPlatform("a machine this project does not cover")


def test_sglang_s_own_config_decides_what_is_sparse() -> None:
    """Both target classes count, a target without sparse layers and other models do not."""
    for architecture in ("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"):
        with pytest.raises(RuntimeError, match="no verify metadata"):
            check(model_config(architecture, [0, 1]), lambda: NVIDIA)
        check(model_config(architecture, [0, 0]), lambda: NVIDIA)
    check(model_config("Qwen3ForCausalLM", [1]), unknown)
