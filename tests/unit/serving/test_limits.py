"""Ways of serving that the draft does not have end at start with what was asked, why not, and what to do."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_dspark.serving import limits, plugin

MODEL_DTYPE, E5M2_MEANS_E4M3 = torch.bfloat16, False


def arguments(**asked: Any) -> SimpleNamespace:
    """What SGLang resolves for a plain server, but for `asked`."""
    plain = {
        "dcp_size": 1,
        "attn_cp_size": 1,
        "attn_dp_size": 1,
        "enable_prefill_cp": False,
        "pp_size": 1,
        "disaggregation_mode": "null",
        "kv_cache_dtype": "auto",
        "speculative_draft_kv_cache_dtype": None,
        "speculative_draft_window_size": None,
        "enable_lora": False,
        "lora_paths": None,
    }
    return SimpleNamespace(**plain | asked)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"dcp_size": 2}, "--dcp-size 2.*leave it out"),
        ({"attn_cp_size": 4}, "--attn-cp-size 4.*leave it out"),
        ({"enable_prefill_cp": True}, "--enable-prefill-cp.*leave it out"),
        ({"attn_dp_size": 2}, "--attn-dp-size 2.*use --tp-size"),
        ({"pp_size": 2}, "--pp-size 2.*use --tp-size"),
        ({"disaggregation_mode": "prefill"}, "--disaggregation-mode prefill.*serve prefill and decode together"),
        ({"disaggregation_mode": "decode"}, "--disaggregation-mode decode"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "fp8_e5m2.*--speculative-draft-kv-cache-dtype fp8_e4m3"),
        ({"speculative_draft_kv_cache_dtype": "fp8_e5m2"}, "fp8_e5m2"),
        ({"enable_lora": True}, "--enable-lora.*leave it out"),
        ({"lora_paths": ["tuned=somewhere"]}, "--lora-paths.*leave it out"),
        ({"speculative_draft_window_size": 512}, "--speculative-draft-window-size 512.*leave it out"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_refused_alone_and_together(asked: dict[str, Any], words: str) -> None:
    """Fault 22. Each alone, and each listed when all are asked for at once."""
    with pytest.raises(limits.Refused) as error:
        limits.check(arguments(**asked), MODEL_DTYPE, e5m2_means_e4m3=E5M2_MEANS_E4M3)
    assert len(error.value.reasons) == 1 and re.search(words, str(error.value))
    with pytest.raises(limits.Refused) as error:
        limits.check(arguments(**asked, dwdp_size=1), torch.float16, e5m2_means_e4m3=E5M2_MEANS_E4M3)
    assert len(error.value.reasons) == 2 and re.search("--dtype float16.*bfloat16", str(error.value))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"kv_cache_dtype": "fp8_e4m3"},
        # The target's pool alone.
        {"kv_cache_dtype": "fp8_e5m2", "speculative_draft_kv_cache_dtype": "bf16"},
    ],
)
def test_what_is_served(dtype: torch.dtype, asked: dict[str, Any]) -> None:
    """A refusal too many keeps a working server down."""
    limits.check(arguments(**asked), dtype, e5m2_means_e4m3=False)


def test_fp8_e5m2_on_rocm_is_the_platform_s_own_format() -> None:
    """SGLang takes e4m3 there, whatever the name says."""
    limits.check(arguments(kv_cache_dtype="fp8_e5m2"), torch.bfloat16, e5m2_means_e4m3=True)


def test_every_argument_is_one_that_sglang_has() -> None:
    """A renamed argument would raise at the start of every server: better here."""
    from sglang.srt.server_args import ServerArgs

    names = set(ServerArgs.__annotations__) | set(dir(ServerArgs))
    fields = getattr(ServerArgs, "__struct_fields__", None) or getattr(ServerArgs, "__dataclass_fields__", {})
    assert set(vars(arguments())) <= names | set(fields)


@pytest.mark.parametrize(
    ("algorithm", "architecture", "checked"),
    [
        ("dspark", "MiniMaxM3SparseForCausalLM", True),
        ("DSPARK", "MiniMaxM3SparseForConditionalGeneration", True),
        ("dspark", "Qwen3ForCausalLM", False),
        ("EAGLE", "MiniMaxM3SparseForCausalLM", False),
        (None, "MiniMaxM3SparseForCausalLM", False),
    ],
)
def test_only_our_drafts_are_refused(monkeypatch, algorithm: str | None, architecture: str, checked: bool) -> None:
    """Other targets and algorithms are SGLang's affair, with or without a draft that was named."""
    from sglang.srt.arg_groups import overrides

    asked = arguments(dcp_size=2, speculative_algorithm=algorithm, speculative_draft_model_path=None)
    config = SimpleNamespace(hf_config=SimpleNamespace(architectures=[architecture]), dtype=torch.bfloat16)
    monkeypatch.setattr(overrides, "resolving_view", lambda server_args: asked)
    monkeypatch.setattr(overrides, "model_config_of", lambda server_args: config)
    went_on: list[Any] = []
    if checked:
        with pytest.raises(limits.Refused, match="--dcp-size 2"):
            plugin._around_handle_speculative_decoding(went_on.append, asked)
    else:
        plugin._around_handle_speculative_decoding(went_on.append, asked)
    assert bool(went_on) != checked
