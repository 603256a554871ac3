"""`sglang-dspark bench model`: what a decode round costs, counted and priced. A model, not a measurement.

It counts the launches, bytes and operations of every stage on SGLang's own path and with our ops, prices them with the
device's stated or measured rates, and says how long the accepted length must be to win over no speculation.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_dspark.bench.step_model.prices import Prices
    from sglang_dspark.bench.step_model.sizes import DraftSizes, TargetSizes

EXAMPLE = """examples:
  sglang-dspark bench model
  sglang-dspark bench model --device MI355X --tp 8 --weights fp8 --kv fp8 --batch 1 4 16 64 --accepted-length 4
  sglang-dspark bench model --device H200 --rows out/bench/*.jsonl --launch-us 2
  sglang-dspark bench model --model-path MiniMax-M3 --draft-path M3-DSpark"""


def add_parser(benchmarks: Any) -> None:
    """Add the command to the parser's `benchmarks`."""
    parser = benchmarks.add_parser(
        "model",
        help="count and price every stage of a decode round: a model, not a measurement",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    asked = parser.add_argument_group("the question")
    asked.add_argument("--model-path", type=Path, help="read the target's sizes here (default: MiniMax-M3's)")
    asked.add_argument("--draft-path", type=Path, help="read the draft's sizes here (default: a released draft's)")
    asked.add_argument("--tp", type=int, default=8, help="ranks of tensor parallelism (default: 8)")
    asked.add_argument("--batch", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128], help="requests at once")
    asked.add_argument("--context", type=int, default=4096, help="tokens of each request so far (default: 4096)")
    asked.add_argument("--accepted-length", type=float, default=3.5, help="tokens a round yields (default: 3.5)")
    asked.add_argument("--gamma", type=int, help="tokens a draft proposes (default: the draft's)")
    asked.add_argument("--features", type=int, help="target layers the draft reads (default: the draft's)")
    asked.add_argument("--draft-mlp-width", type=int, help="(default: the draft's)")
    for name, what in (("weights", "the target's linear weights"), ("kv", "its KV pool"), ("draft-kv", "the draft's")):
        asked.add_argument(f"--{name}", choices=("bf16", "fp8"), default="bf16", help=f"{what} (default: bf16)")
    asked.add_argument(
        "--expert-overlap",
        type=float,
        default=0.0,
        help="0: a window's tokens choose experts independently; 1: all the same (default: 0)",
    )
    asked.add_argument("--block-overlap", type=float, default=1.0, help="the same of key blocks (default: 1)")
    prices = parser.add_argument_group("prices")
    prices.add_argument("--device", default="MI300X", help="MI300X, MI325X, MI355X, H100 or H200 (default: MI300X)")
    prices.add_argument("--rows", type=Path, nargs="+", help="rows of `bench kernels` on this device: measured prices")
    prices.add_argument("--launch-us", type=float, help="of a kernel in a captured graph (default: 1.5, or the rows')")
    prices.add_argument(
        "--eager-us", type=float, help="of one outside it (default: the same; 10 if the host is behind)"
    )
    prices.add_argument(
        "--collective-us", type=float, default=12.0, help="of a collective, beside its bytes (default: 12)"
    )
    prices.add_argument("--bandwidth-share", type=float, default=0.8, help="of the stated one (default: 0.8)")
    prices.add_argument("--operations-share", type=float, default=0.5, help="of the stated rate (default: 0.5)")
    parser.add_argument("--out", type=Path, help="also write rows and a picture into this folder")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the tables; 0."""
    from sglang_dspark.bench import environment, report, rows, this_machine
    from sglang_dspark.bench.step_model import as_rows, case, picture

    for name in ("accepted_length", "bandwidth_share", "operations_share", "launch_us", "eager_us", "collective_us"):
        value = getattr(arguments, name)
        if value is not None and value < (1 if name == "accepted_length" else 0):
            raise ValueError(f"--{name.replace('_', '-')} {value:g}: too small")
    target, draft = _sizes(arguments)
    facts = this_machine.run_facts()
    found = []
    for batch in sorted(set(arguments.batch)):
        question = case.Case(
            target, draft, arguments.tp, batch, arguments.context, arguments.weights, arguments.kv, arguments.draft_kv,
            arguments.block_overlap, arguments.expert_overlap,
        )  # fmt: skip
        shape = {"kv_heads": question.kv_heads, "query_heads": question.query_heads, "layers": draft.layers}
        prices = _prices(arguments, shape)
        # SGLang's own rule: MiniMaxM3SparseForCausalLM.shared_experts_fusion_disable_reason.
        question = replace(question, shared_fused=prices.arch != "gfx942")
        found += as_rows.rows_of(question, prices, arguments.accepted_length, facts)
    print(report.markdown(found))
    if arguments.out:
        path = environment.results_path(arguments.out, facts).with_name(f"model-{arguments.device.lower()}.jsonl")
        path.unlink(missing_ok=True)
        for row in found:
            rows.append(path, row)
        print(f"\n{len(found)} rows in {path}")
        picture.draw(found, path.with_suffix(".png"))
        print(f"picture: {path.with_suffix('.png')}")
    return 0


def _sizes(arguments: argparse.Namespace) -> tuple[TargetSizes, DraftSizes]:
    from sglang_dspark.bench.step_model import sizes

    target = sizes.read_target(arguments.model_path) if arguments.model_path else sizes.MINIMAX_M3
    draft = sizes.read_draft(arguments.draft_path) if arguments.draft_path else sizes.MINIMAX_M3_DRAFT
    given = {"gamma": arguments.gamma, "features": arguments.features, "mlp_width": arguments.draft_mlp_width}
    for name, value in given.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} {value}: give 1 or more")
    return target, replace(draft, **{name: value for name, value in given.items() if value is not None})


def _prices(arguments: argparse.Namespace, shape: dict[str, int]) -> Prices:
    from sglang_dspark.bench import rows
    from sglang_dspark.bench.step_model import prices

    launch_us = prices.LAUNCH_US if arguments.launch_us is None else arguments.launch_us
    found = prices.stated(
        arguments.device, launch_us, arguments.eager_us, arguments.collective_us, arguments.bandwidth_share,
        arguments.operations_share,
    )  # fmt: skip
    if not arguments.rows:
        return found
    measured = prices.calibrated(found, rows.read(arguments.rows), shape, arguments.draft_kv)
    if arguments.launch_us is None:
        return measured
    sources = {**measured.sources, "launch": found.sources["launch"]}
    return replace(measured, launch_us=found.launch_us, eager_launch_us=found.eager_launch_us, sources=sources)
