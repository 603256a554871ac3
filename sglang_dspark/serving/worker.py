"""Our DSPARK worker: the builtin one, which also binds the context KV writer and says that it is active.

Scheduling (ragged verify, planner, overlap, graphs) is inherited, never copied.
"""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.dspark_components.dspark_worker_v2 import DSparkWorkerV2

from sglang_dspark import __version__, platforms
from sglang_dspark.models.minimax_m3_dspark import DSparkMiniMaxDraftModel
from sglang_dspark.serving import contract, verify_support, weight_update
from sglang_dspark.serving.acceptance import setup as acceptance
from sglang_dspark.serving.acceptance.rounds import ATTRIBUTE

logger = logging.getLogger(__name__)


class DSparkWorker(DSparkWorkerV2):
    """The worker SGLang creates for `--speculative-algorithm dspark` when this plugin is installed."""

    def __init__(
        self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Build the draft as the builtin worker does, and make sure that a MiniMax-M3 draft is our class.

        Raises:
            RuntimeError: SGLang cannot verify this target on this platform, or it loaded its own class for a
                MiniMax-M3 draft, so our model package did not take.
        """
        verify_support.check(target_worker.model_runner.model_config, platforms.current)
        super().__init__(server_args, gpu_id, nccl_port, target_worker, *args, **kwargs)
        self._serves_our_draft = self._hosts_draft and isinstance(self.draft_model, DSparkMiniMaxDraftModel)
        if self._hosts_draft and type(self.draft_model).__name__ == DSparkMiniMaxDraftModel.__name__:
            if not self._serves_our_draft:
                raise RuntimeError(
                    f"asked for sglang-dspark's {DSparkMiniMaxDraftModel.__name__}, found SGLang's own from "
                    f"{type(self.draft_model).__module__}; look for an import error of sglang_dspark.models above, "
                    "or uninstall sglang-dspark to use SGLang's own"
                )
        self._draft_gate = acceptance.open_gate(self, ours=self._serves_our_draft) if self._hosts_draft else None
        if self._serves_our_draft:
            weight_update.guard(target_worker.model_runner, self.draft_model_runner)

    def alloc_memory_pool(self, *args: Any, **kwargs: Any) -> None:
        """Allocate the draft's KV pool, then choose the context KV writer for it, once, before any graph capture."""
        super().alloc_memory_pool(*args, **kwargs)
        if not self._hosts_draft:
            return
        speaks = get_parallel().tp_rank == 0
        if not self._serves_our_draft:
            if speaks:
                draft = type(self.draft_model).__name__
                logger.info("sglang-dspark leaves the %s to SGLang: it is no MiniMax-M3 DSpark draft", draft)
            return
        ops = self.draft_model.bind_pool(self.draft_model_runner.token_to_kv_pool)
        if speaks:
            platform = platforms.current()
            logger.info(
                "sglang-dspark %s active: worker=%s, SGLang %s, platform=%s (%s), %s",
                __version__,
                type(self).__name__,
                contract.installed_version(),
                platform.name,
                platform.arch,
                ops,
            )

    def _forward_decode(
        self, batch: Any, on_publish: Any, grammar_barrier: Any = None, coordination_plan: Any = None
    ) -> Any:
        """One decode step as the builtin worker does it; its result also says what the acceptance counts need."""
        result = super()._forward_decode(batch, on_publish, grammar_barrier, coordination_plan)
        if self._draft_gate is not None:
            setattr(result, ATTRIBUTE, self._draft_gate.take_facts())
        return result
