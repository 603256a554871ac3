"""The worker: the builtin one, which also binds the context KV writer once and says in one line that it is active."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.models import dspark_minimax
from sglang.srt.speculative.dspark_components.dspark_worker_v2 import DSparkWorkerV2

from sglang_dspark.models.minimax_m3_dspark import DSparkMiniMaxDraftModel
from sglang_dspark.serving import worker as worker_module
from sglang_dspark.serving.cpu.worker import CpuDSparkWorker
from sglang_dspark.serving.worker import DSparkWorker


class OurDraft(DSparkMiniMaxDraftModel):
    def __init__(self, calls: list[Any]) -> None:
        object.__setattr__(self, "calls", calls)

    def bind_pool(self, pool: Any) -> str:
        self.calls.append(pool)
        return "context_kv=torch (refused: triton: needs a GPU)"


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch):
    """Builds a worker around a draft, with the builtin worker's own work left out."""
    calls: list[Any] = []
    guarded: list[tuple[Any, ...]] = []

    def build(draft: Any, *, hosts_draft: bool = True, tp_rank: int = 0, kind: type = DSparkWorker) -> DSparkWorker:
        def builtin_init(self: Any, *args: Any, **kwargs: Any) -> None:
            self._hosts_draft = hosts_draft
            if hosts_draft:
                self._draft, self._runner = draft, SimpleNamespace(token_to_kv_pool="pool")

        monkeypatch.setattr(DSparkWorkerV2, "__init__", builtin_init)
        monkeypatch.setattr(DSparkWorkerV2, "alloc_memory_pool", lambda self, *args: calls.append(args))
        monkeypatch.setattr(DSparkWorkerV2, "draft_model", property(lambda self: self._draft), raising=False)
        monkeypatch.setattr(DSparkWorkerV2, "draft_model_runner", property(lambda self: self._runner), raising=False)
        monkeypatch.setattr(worker_module, "get_parallel", lambda: SimpleNamespace(tp_rank=tp_rank))
        monkeypatch.setattr(worker_module.acceptance, "open_gate", lambda worker, ours: gate if ours else None)
        monkeypatch.setattr(worker_module.weight_update, "guard", lambda *runners: guarded.append(runners))
        return kind(server_args=None, gpu_id=0, nccl_port=0, target_worker=target)

    config = SimpleNamespace(hf_config=SimpleNamespace(architectures=["MiniMaxM3SparseForCausalLM"]))
    config.hf_config.sparse_attention_config = {"sparse_attention_freq": [0, 1]}
    config.quantization = None
    target = SimpleNamespace(model_runner=SimpleNamespace(model_config=config))
    gate = SimpleNamespace(take_facts=lambda: "facts")
    build.calls, build.guarded = calls, guarded
    return build


def active_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "active" in record.getMessage()]


@pytest.mark.parametrize("kind", [DSparkWorker, CpuDSparkWorker])
def test_the_writer_is_bound_when_the_pool_exists(make, caplog, kind: type) -> None:
    """And the one line that proves it: which worker, SGLang, platform and writer, and why not the others."""
    caplog.set_level(logging.INFO)
    worker = make(OurDraft(make.calls), kind=kind)
    assert make.calls == []
    worker.alloc_memory_pool("config", "requests", "allocator")
    assert make.calls == [("config", "requests", "allocator"), "pool"]
    assert len(make.guarded) == 1, "a weight update would go to SGLang alone"
    (line,) = active_lines(caplog)
    for part in (f"worker={kind.__name__}", "SGLang 0.5.23", "platform=cpu", "context_kv=torch", "triton: needs a GPU"):
        assert part in line


def test_a_target_that_cannot_be_verified_ends_before_the_draft_is_built(make, monkeypatch) -> None:
    """On CUDA it would crash at the first verify step instead, minutes later."""
    monkeypatch.setattr(worker_module.platforms, "current", lambda: worker_module.platforms.describe("nvidia", "sm_90"))
    with pytest.raises(RuntimeError, match="no verify metadata"):
        make(OurDraft(make.calls))


def test_one_rank_speaks(make, caplog) -> None:
    """Eight ranks would say it eight times."""
    caplog.set_level(logging.INFO)
    make(OurDraft(make.calls), tp_rank=1).alloc_memory_pool(None, None, None)
    assert active_lines(caplog) == [] and make.calls[-1] == "pool"


def test_sglang_s_own_draft_class_is_refused(make) -> None:
    """The registry only warns when our model package fails to import; the server would then run without our writer."""
    theirs = object.__new__(dspark_minimax.DSparkMiniMaxDraftModel)
    with pytest.raises(RuntimeError, match="found SGLang's own from sglang.srt.models.dspark_minimax"):
        make(theirs)


def test_another_model_s_draft_is_served_as_sglang_serves_it(make, caplog) -> None:
    """The plugin is installed for all of SGLang's DSPARK targets: it must not break the others."""
    caplog.set_level(logging.INFO)
    make(SimpleNamespace()).alloc_memory_pool(None, None, None)
    assert active_lines(caplog) == []
    assert "leaves the SimpleNamespace to SGLang" in caplog.text
    assert make.guarded == []


def test_a_rank_without_a_draft(make, caplog) -> None:
    """Some ranks host no draft: they have no draft model to ask."""
    caplog.set_level(logging.INFO)
    make(None, hosts_draft=False).alloc_memory_pool(None, None, None)
    assert active_lines(caplog) == []


def test_a_decode_result_carries_the_step_s_facts(make, monkeypatch) -> None:
    """The acceptance counts are made where the result is processed; a draft that is not ours adds nothing."""
    monkeypatch.setattr(DSparkWorkerV2, "_forward_decode", lambda self, *args: SimpleNamespace(args=args))
    result = make(OurDraft(make.calls))._forward_decode("batch", "publish", "barrier", "plan")
    assert getattr(result, worker_module.ATTRIBUTE) == "facts"
    assert result.args == ("batch", "publish", "barrier", "plan")
    assert not hasattr(make(SimpleNamespace())._forward_decode("batch", None), worker_module.ATTRIBUTE)
