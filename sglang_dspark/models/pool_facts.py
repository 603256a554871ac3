"""What the ops must know of a draft and its KV pool, read off SGLang's modules once, when the pool is bound."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from sglang_dspark.ops import context_kv, qk_norm_rope


class PoolFacts:
    """The specs and tables of both ops for one draft and one pool."""

    def __init__(self, attentions: Sequence[Any], pool: Any) -> None:
        """Read the pool's buffers of every layer; SGLang gives fp8 ones as typed views."""
        self._attentions = list(attentions)
        self._first = self._attentions[0]
        layer_ids = [attention.attn.layer_id for attention in self._attentions]
        self._k_pools = tuple(pool.get_key_buffer(i) for i in layer_ids)
        self._v_pools = tuple(pool.get_value_buffer(i) for i in layer_ids)
        block_scaled = _is_block_scaled(pool)
        self._fp8 = not block_scaled and self._k_pools[0].element_size() == 1
        # Of all layers, [L, D] fp32. The ops keep these very tensors, captured graphs too: new weights are copied in.
        self._q_multipliers = _multipliers(attention.q_norm for attention in self._attentions)
        self._k_multipliers = _multipliers(attention.k_norm for attention in self._attentions)
        rotary = self._first.rotary_emb
        self._cos_sin = rotary.cos_sin_cache
        # Alike in both specs.
        self._shared = {
            "num_kv_heads": self._first.num_kv_heads,
            "head_dim": self._first.head_dim,
            "rotary_dim": rotary.rotary_dim,
            "is_neox": rotary.is_neox_style,
            "eps": self._first.k_norm.variance_epsilon,
            # A block-scaled pool's may be a packed type, of which the ops know nothing: its layout refuses it.
            "pool_dtype": self.dtype if block_scaled else self._k_pools[0].dtype,
            "cos_sin_dtype": self._cos_sin.dtype,
            # Pools without the attribute have the one layout there was before the others.
            "pool_layout": "block_scaled" if block_scaled else getattr(pool, "kv_cache_layout", "nhd"),
        }

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of K and V before they are stored: the norms', whatever the projections are quantised to."""
        return self._first.k_norm.weight.dtype

    def refresh(self) -> None:
        """Take over the norms' new weights, in place."""
        self._q_multipliers.copy_(_multipliers(attention.q_norm for attention in self._attentions))
        self._k_multipliers.copy_(_multipliers(attention.k_norm for attention in self._attentions))

    def context_kv(self) -> tuple[context_kv.ContextKVSpec, context_kv.ContextKVTables]:
        """For the context KV writer, all layers in one."""
        spec = context_kv.ContextKVSpec(
            num_layers=len(self._attentions),
            kv_dtype=self.dtype,
            k_scales=self._scales("k_scale_float"),
            v_scales=self._scales("v_scale_float"),
            **self._shared,
        )
        return spec, context_kv.ContextKVTables(self._k_pools, self._v_pools, self._k_multipliers, self._cos_sin)

    def qk_norm_rope(self, layer: int) -> tuple[qk_norm_rope.QKNormRopeSpec, qk_norm_rope.QKNormRopeTables]:
        """For the query block's op of one layer."""
        attention = self._attentions[layer]
        spec = qk_norm_rope.QKNormRopeSpec(
            num_q_heads=attention.num_heads,
            qkv_dtype=self.dtype,
            k_scale=attention.attn.k_scale_float or 1.0 if self._fp8 else None,
            v_scale=attention.attn.v_scale_float or 1.0 if self._fp8 else None,
            **self._shared,
        )
        multipliers = self._q_multipliers[layer], self._k_multipliers[layer]
        pools = self._k_pools[layer], self._v_pools[layer]
        return spec, qk_norm_rope.QKNormRopeTables(*multipliers, self._cos_sin, *pools)

    def _scales(self, name: str) -> tuple[float, ...] | None:
        if not self._fp8:
            return None
        return tuple(getattr(attention.attn, name) or 1.0 for attention in self._attentions)


def _is_block_scaled(pool: Any) -> bool:
    """Whether stored values have scales beside them, which a writer would have to write too.

    Their data may look like a plain fp8 pool's (mxfp8), and `get_key_buffer` may give a dequantised copy (fp4).
    """
    return bool(getattr(pool, "is_quantized_kv_cache", False)) or getattr(pool, "k_scale_buffer", None) is not None


def _multipliers(norms: Iterable[Any]) -> torch.Tensor:  # [L, D] fp32
    """What Gemma norms multiply the normalised rows by: 1 + w, formed in fp32."""
    return torch.stack([1.0 + norm.weight.detach().float() for norm in norms])
