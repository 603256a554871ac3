"""The DSpark draft of MiniMax-M3 for SGLang, in both checkpoint layouts.

The network is SGLang's `DSparkMiniMaxDraftModel`. This class loads AutoModel's layout beside the released one with
every tensor accounted for, honours a draft without a confidence head, and writes the context K/V through
`sglang_dspark.ops.context_kv`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from sglang.srt.model_loader.weight_utils import default_weight_loader
from sglang.srt.models import dspark_minimax
from sglang.srt.runtime_context import get_parallel

from sglang_dspark import platforms
from sglang_dspark.checkpoints import Accounting, CheckpointError, DraftConfig, parse_draft_config
from sglang_dspark.checkpoints.tensors import SHARED_WITH_TARGET
from sglang_dspark.models import finite_weights
from sglang_dspark.models.context_projection import ContextProjection
from sglang_dspark.models.fused_norms import pin_fused_norms
from sglang_dspark.models.pool_facts import PoolFacts
from sglang_dspark.models.query_path import FusedQueryPath
from sglang_dspark.models.shared_tables import SharedTable
from sglang_dspark.ops import context_kv, qk_norm_rope
from sglang_dspark.ops.dispatch import AUTO, Choice, NoBackend
from sglang_dspark.serving.hf_config import source_layout

logger = logging.getLogger(__name__)

# Each names an op's backend instead of the platform's first choice; a named one never falls back.
CONTEXT_KV_VARIABLE = "SGLANG_DSPARK_CONTEXT_KV"
QUERY_VARIABLE = "SGLANG_DSPARK_QK_NORM_ROPE"

# (part of a canonical name, the fused parameter's, shard)
_FUSED = (
    (".q_proj.", ".qkv_proj.", "q"),
    (".k_proj.", ".qkv_proj.", "k"),
    (".v_proj.", ".qkv_proj.", "v"),
    (".gate_proj.", ".gate_up_proj.", 0),
    (".up_proj.", ".gate_up_proj.", 1),
)


class DSparkMiniMaxDraftModel(dspark_minimax.DSparkMiniMaxDraftModel):
    """SGLang's draft model with this plugin's loader and context KV writer."""

    # Read by SGLang's loader: never a pickle, whatever lies beside the safetensors or in their place.
    fall_back_to_pt_during_load = False

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        """Build this rank's part of the draft.

        Args:
            config: the released layout's, as `configure_minimax_m3_dspark` leaves it.
            quant_config: the draft's own quantisation, None for a plain checkpoint.
            prefix: unused; the checkpoint's names are fixed.

        Raises:
            CheckpointError: the config is not servable, or tensor parallelism does not divide the draft.
        """
        where = getattr(config, "_name_or_path", "") or "checkpoint"
        released = parse_draft_config(config.to_dict(), where)
        draft_config = dataclasses.replace(released, layout=source_layout(config))
        if problems := draft_config.problems_with_tensor_parallel(get_parallel().attn_tp_size):
            raise CheckpointError(where, problems)
        super().__init__(config=config, quant_config=quant_config, prefix=prefix)
        pin_fused_norms(self, platforms.current())
        self.where = where
        self.draft_config: DraftConfig = draft_config
        if not draft_config.enable_confidence_head:
            # SGLang builds the head from the verify mode alone. Compact verify then says that it needs one.
            self.confidence_head = None
        self._shared_tables: list[SharedTable] = []
        self._pool_facts: PoolFacts | None = None
        self._project_context: ContextProjection | None = None
        self._write_context: Callable[..., None] | None = None
        self._bound_pool: Any = None
        self._choices: list[Choice] = []

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load every tensor of the checkpoint, whichever layout it is in.

        Returns:
            The names of the parameters that were loaded.

        Raises:
            CheckpointError: tensors are missing, unexpected, repeated, of another shape, or hold NaN or infinity; all
                are listed.
        """
        parameters = dict(self.named_parameters())
        accounting = Accounting(self.draft_config)
        self._shared_tables = []
        # What SGLang's own context write, where ours is refused, has kept of the old weights.
        self._mxfp8_ctx_kv_cache, self._fused_kv_write_cache = False, None
        loaded = set()
        for raw_name, weight in weights:
            name = accounting.add(raw_name, tuple(weight.shape))
            if name is not None:
                if problem := finite_weights.problem_with(raw_name, weight):
                    accounting.problems.append(problem)
                if name.startswith("confidence_head.") and self.confidence_head is None:
                    continue  # static verify reads no confidence
                loaded.add(_load(parameters, name, weight))
            elif raw_name in SHARED_WITH_TARGET:
                self._shared_tables.append(SharedTable(raw_name, weight))
        if problems := accounting.finish():
            raise CheckpointError(self.where, problems)
        if self._pool_facts is not None and self._project_context is not None:
            self._pool_facts.refresh()
            for choice in self._choices:
                choice.refresh()
            self._project_context.refresh()
        return loaded

    def attach_shared_modules(self, *, embed_tokens: torch.nn.Module, lm_head: torch.nn.Module) -> None:
        """Take over the target's embedding and LM head.

        Raises:
            CheckpointError: the draft carries copies of its own that differ from the target's.
        """
        self._target_modules = dict(zip(SHARED_WITH_TARGET, (embed_tokens, lm_head), strict=True))
        if problems := self.shared_table_problems():
            raise CheckpointError(self.where, problems)
        super().attach_shared_modules(embed_tokens=embed_tokens, lm_head=lm_head)

    def shared_table_problems(self) -> list[str]:
        """What tells the copies in the checkpoint that was loaded last apart from the target's tables."""
        of_target = self._target_modules
        return [problem for table in self._shared_tables if (problem := table.problem_with(of_target[table.name]))]

    def bind_pool(self, pool: Any) -> str:
        """Choose the ops that write a pool, and bind them to it; once, before graph capture.

        Returns:
            A description for the log: each op's backend, and why others were refused.

        Raises:
            NoBackend: a backend that was asked for by name does not cover this pool or model.
        """
        attentions = [layer.self_attn for layer in self.layers]
        facts = self._pool_facts = PoolFacts(attentions, pool)
        self._project_context = ContextProjection(attentions)
        self._bound_pool = pool
        written = _choose(context_kv.choose, *facts.context_kv(), CONTEXT_KV_VARIABLE)
        self._write_context = None if written is None else written.run
        queries = [_choose(qk_norm_rope.choose, *facts.qk_norm_rope(i), QUERY_VARIABLE) for i in range(len(attentions))]
        self._choices = [choice for choice in (written, *queries) if choice is not None]
        for attention, query in zip(attentions, queries, strict=True):
            attention.__dict__.pop("forward", None)  # an earlier pool's
            if query is not None:
                attention.forward = FusedQueryPath(attention, query.run)
        for choice in (written, queries[0]):
            if choice is not None and choice.passed_over:
                logger.warning("sglang-dspark: %s", choice.describe_passed_over())
        ops = (
            f"{op}=SGLang's own" if choice is None else choice.describe()
            for op, choice in (("context_kv", written), ("qk_norm_rope", queries[0]))
        )
        return ", ".join([*ops, self._project_context.describe()])

    def write_target_hidden_kv(
        self,
        *,
        target_hidden: torch.Tensor,  # [T, K * hidden], or [T, hidden] when already projected
        pool: Any,
        positions: torch.Tensor,  # [T] int64
        cache_loc: torch.Tensor,  # [T] int64, the slots
        cache_loc_2d: torch.Tensor | None = None,  # [B, W] int64
        commit_lens: torch.Tensor | None = None,  # [B] int32
        target_hidden_is_projected: bool = False,
    ) -> None:
        """Write the context K/V of target hidden states into the draft's pool, every layer at once."""
        if pool is not self._bound_pool:
            self.bind_pool(pool)
        if self._write_context is None:
            super().write_target_hidden_kv(
                target_hidden=target_hidden,
                pool=pool,
                positions=positions,
                cache_loc=cache_loc,
                cache_loc_2d=cache_loc_2d,
                commit_lens=commit_lens,
                target_hidden_is_projected=target_hidden_is_projected,
            )
            return
        hidden = target_hidden if target_hidden_is_projected else self.project_target_hidden(target_hidden)
        kv = self._project_context(hidden)
        if cache_loc_2d is not None and commit_lens is not None:
            self._write_context(kv, positions, cache_loc_2d.reshape(-1), commit_lens)
        else:
            self._write_context(kv, positions, cache_loc)


def _choose(choose: Callable[..., Choice], spec: Any, tables: Any, variable: str) -> Choice | None:
    """The op's backend for this platform; None where all refuse and none was asked for by name."""
    requested = os.environ.get(variable, AUTO)
    try:
        return choose(platforms.current(), spec, tables, requested)
    except NoBackend as refusal:
        if requested != AUTO:
            raise
        logger.warning("sglang-dspark: %s. SGLang's own code is used.", refusal)
        return None


def _load(parameters: dict[str, torch.nn.Parameter], name: str, weight: torch.Tensor) -> str:
    """Hand one tensor to the parameter that holds it, whole or as a shard; the parameter's name."""
    shard: tuple[Any, ...] = ()
    if name.startswith("layers."):
        _, index, rest = name.split(".", 2)
        name = f"layers.{index}.decoder_layer.{rest}"
        for part, fused, shard_id in _FUSED:
            if part in name:
                name, shard = name.replace(part, fused), (shard_id,)
                break
    parameter = parameters[name]
    loader = getattr(parameter, "weight_loader", default_weight_loader)
    loader(parameter, weight, *shard)
    return name


EntryClass = DSparkMiniMaxDraftModel
