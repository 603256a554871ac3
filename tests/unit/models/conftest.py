"""One rank of SGLang, as a model sees it while it is built: published arguments and process groups of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.checkpoints.drafts import automodel


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """SGLang's parallel context of a single rank, taken down again before tests that start an engine here."""
    from sglang.srt.distributed import parallel_state
    from sglang.srt.runtime_context import get_context, get_parallel

    meeting: Path = tmp_path_factory.mktemp("rank") / "meeting"
    with (
        get_context().override_server_args(device="cpu"),
        get_parallel().override(attn_tp_rank=0),
    ):
        parallel_state.init_distributed_environment(
            world_size=1, rank=0, local_rank=0, distributed_init_method=f"file://{meeting}", backend="gloo"
        )
        parallel_state.initialize_model_parallel()
        yield get_parallel()
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()


@pytest.fixture
def build(rank: Any) -> Iterator[Callable[..., Any]]:
    """Builds the draft model from a config.json of either layout, as SGLang's loader does."""
    from sglang.srt.configs.minimax_vl import configure_minimax_m3_dspark

    from sglang_dspark.models.minimax_m3_dspark import DSparkMiniMaxDraftModel
    from sglang_dspark.serving.hf_config import MiniMaxM3Config

    before = torch.get_default_dtype()

    def make(raw: dict[str, Any] | None = None, dtype: torch.dtype = torch.float32) -> DSparkMiniMaxDraftModel:
        torch.set_default_dtype(dtype)
        return DSparkMiniMaxDraftModel(configure_minimax_m3_dspark(MiniMaxM3Config(**(raw or automodel()))))

    yield make
    torch.set_default_dtype(before)
