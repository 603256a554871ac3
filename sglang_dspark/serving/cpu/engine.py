"""All that SGLang's CPU engine lacks to serve MiniMax-M3 with DSPARK, registered in one place.

Active only with SGLANG_USE_CPU_ENGINE=1. Each part stands beside this module; its docstring says what stands in the
way without it.
"""

from __future__ import annotations

import os

# M3's router multiplies in bf16 with an fp32 result, for which torch has no CPU kernel; and compiling the activation
# needs a C++ compiler and ten seconds for nothing.
_DEFAULTS = {"SGLANG_OPT_USE_BF16_ROUTER_GEMM": "0", "TORCHDYNAMO_DISABLE": "1"}


def register() -> None:
    """Register the CPU engine's parts with SGLang; call it once, before SGLang applies its hooks."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)

    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from sglang_dspark.serving.cpu import attention, kv_cache, moe, ops, sampling, sparse_attention

    ops.register()
    attention.register()
    for target, hook in (
        ("sglang.srt.layers.attention.attention_registry.attn_backend_wrapper", sparse_attention.around_wrapper),
        ("sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator.configure", kv_cache.around_configure),
        ("sglang.srt.layers.moe.fused_moe_native.moe_forward_native", moe.around_moe_forward_native),
        (
            "sglang.kernels.ops.speculative.reject_sampling.chain_speculative_sampling_triton",
            sampling.around_chain_speculative_sampling,
        ),
    ):
        HookRegistry.register(target, hook, HookType.AROUND)
