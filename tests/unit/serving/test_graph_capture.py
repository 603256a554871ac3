"""Nothing may talk to other ranks through torch.distributed, or unload a code object, while a graph is captured.

HIP refuses both: ProcessGroupNCCL's watchdog asks for events on the capturing stream, and a module that is unloaded
takes its kernels out of graphs that were captured already.
"""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import sglang_dspark

PACKAGE = Path(sglang_dspark.__file__).parent
# What a decode step runs, and so what a graph captures.
CAPTURED = ("ops", "models")
RANKS = ("torch.distributed", "sglang.srt.distributed")


@pytest.mark.parametrize("enabled", [True, False])
def test_a_broadcast_during_capture_goes_to_pynccl(monkeypatch: pytest.MonkeyPatch, enabled: bool) -> None:
    """Fault 7. DSPARK's draft sampler broadcasts every token to its ranks, inside the captured graph.

    SGLang enables PyNccl for the time of a capture; its broadcast must then leave torch.distributed alone.
    """
    from sglang.srt.distributed.parallel_state import GroupCoordinator

    heard: list[str] = []
    monkeypatch.setattr(torch.distributed, "broadcast", lambda *_, **__: heard.append("torch.distributed"))
    group = object.__new__(GroupCoordinator)
    group.__dict__.update(
        world_size=2,
        ranks=[0, 1],
        device_group=None,
        pynccl_comm=SimpleNamespace(disabled=not enabled, broadcast=lambda *_, **__: heard.append("pynccl")),
    )
    group.broadcast(torch.zeros(1), src=0)
    assert heard == ["pynccl" if enabled else "torch.distributed"]


def test_what_a_graph_captures_of_ours_is_one_rank_s_own() -> None:
    """Fault 7. Our ops and the draft model's own code ask no other rank for anything."""
    found = []
    for path in sorted(source for folder in CAPTURED for source in (PACKAGE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            elif isinstance(node, ast.Attribute):
                names = [ast.unparse(node)]
            found += [f"{path.name}: {name}" for name in names if name.startswith(RANKS)]
    assert found == []
