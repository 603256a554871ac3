"""What a launch, a byte, an operation and a sent byte cost on a device: stated, assumed, or from measured rows.

Stated rates of products without sparsity: AMD's data sheets of the MI300X and MI325X (1307 Tflop/s bf16, 2615 fp8) and
the MI355X (2517, 5033), NVIDIA's of the H100 SXM5 and H200 SXM (989, 1979). Stated links to the other chips of a node,
one direction: seven Infinity Fabric links of 64 GB/s (MI300X, MI325X) and 76.8 GB/s (MI355X), NVLink 4's 450 GB/s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sglang_dspark.bench.roofline import CHIPS, chip_named
from sglang_dspark.bench.rows import Row

from .stages import Stage

# Shares that kernels reach of what is stated. The first: copies on an MI300X are reported at 4.2 of 5.3 TB/s.
BANDWIDTH_SHARE, OPERATIONS_SHARE, LINK_SHARE = 0.8, 0.5, 0.7
# Between two kernels of a captured graph; a small sum over a node's ranks, its launch and its waiting.
LAUNCH_US, COLLECTIVE_US = 1.5, 12.0
# How the pool types of rows begin, and who ran SGLang's separate kernels there.
POOL_NAMES = {"bf16": "bf16", "fp8": "e4m3"}
UNFUSED = "unfused"


@dataclass(frozen=True)
class Rates:
    """What a vendor states of a chip, beside its memory."""

    operations_per_s: float
    narrow_operations_per_s: float
    link_bytes_per_s: float


RATES = {
    "MI300X": Rates(1307.4e12, 2614.9e12, 7 * 64e9),
    "MI325X": Rates(1307.4e12, 2614.9e12, 7 * 64e9),
    "MI355X": Rates(2516.6e12, 5033.2e12, 7 * 76.8e9),
    "H100": Rates(989.4e12, 1978.9e12, 450e9),
    "H200": Rates(989.4e12, 1978.9e12, 450e9),
}


@dataclass(frozen=True)
class Prices:
    """The prices of one device. ``sources`` says of each where it comes from; ``op_us`` are measured ops by rows."""

    device: str
    arch: str
    bytes_per_s: float
    operations_per_s: float
    narrow_operations_per_s: float
    link_bytes_per_s: float
    launch_us: float
    eager_launch_us: float
    collective_us: float
    sources: Mapping[str, str]
    op_us: Mapping[tuple[str, str], Sequence[tuple[int, float]]] = field(default_factory=dict)

    def time_us(self, stage: Stage, path: str) -> float:
        """Launches, then the slower of moving and computing, then sending; or the op's measured time, if there is one.

        Nothing overlaps here. What does on a device (sending behind computing, say) makes it faster.
        """
        measured = self._measured_us(stage, path)
        sending = stage.collectives * self.collective_us + stage.wire_bytes / self.link_bytes_per_s * 1e6
        if measured is not None:
            return measured * stage.op_calls + sending
        operations = self.narrow_operations_per_s if stage.narrow else self.operations_per_s
        working = max(stage.moved_bytes / self.bytes_per_s, stage.operations / operations) * 1e6
        launch_us = self.eager_launch_us if stage.eager else self.launch_us
        return stage.launches * launch_us + working + sending

    def is_measured(self, stage: Stage, path: str) -> bool:
        """Whether the stage's price is a measured one."""
        return self._measured_us(stage, path) is not None

    def _measured_us(self, stage: Stage, path: str) -> float | None:
        """Between the two nearest measured numbers of rows, in a straight line; nothing outside them."""
        points = self.op_us.get((stage.op, path), ())
        for (low, low_us), (high, high_us) in zip(points, points[1:], strict=False):
            if low <= stage.op_rows <= high:
                return low_us + (high_us - low_us) * (stage.op_rows - low) / (high - low)
        return None


def stated(
    device: str,
    launch_us: float = LAUNCH_US,
    eager_launch_us: float | None = None,
    collective_us: float = COLLECTIVE_US,
    bandwidth_share: float = BANDWIDTH_SHARE,
    operations_share: float = OPERATIONS_SHARE,
) -> Prices:
    """The prices of a chip by its data sheet and the assumed shares.

    Raises:
        ValueError: a chip that is not listed.
    """
    chip = next((chip for chip in CHIPS if chip.name == device), None)
    if chip is None:
        raise ValueError(f"asked for the prices of {device!r}; known are {', '.join(chip.name for chip in CHIPS)}")
    rates = RATES[device]
    eager = launch_us if eager_launch_us is None else eager_launch_us
    return Prices(
        device=device,
        arch=chip.arch,
        bytes_per_s=chip.stated_bytes_per_s * bandwidth_share,
        operations_per_s=rates.operations_per_s * operations_share,
        narrow_operations_per_s=rates.narrow_operations_per_s * operations_share,
        link_bytes_per_s=rates.link_bytes_per_s * LINK_SHARE,
        launch_us=launch_us,
        eager_launch_us=eager,
        collective_us=collective_us,
        sources={
            "memory": f"stated {chip.stated_bytes_per_s / 1e12:.3g} TB/s, {bandwidth_share:.0%} of it assumed reached",
            "operations": f"stated {rates.operations_per_s / 1e12:.0f} Tflop/s bf16 and "
            f"{rates.narrow_operations_per_s / 1e12:.0f} fp8, {operations_share:.0%} of it assumed reached",
            "links": f"stated {rates.link_bytes_per_s / 1e9:.0f} GB/s a direction, {LINK_SHARE:.0%} assumed reached",
            "launch": f"{launch_us:g} us assumed, {eager:g} us outside a graph",
            "collective": f"{collective_us:g} us each assumed, beside its bytes",
        },
    )


def calibrated(prices: Prices, rows: Iterable[Row], shape: Mapping[str, int], draft_kv: str) -> Prices:
    """The prices with what rows of the same chip have measured in place of what was stated.

    The 1 GiB copy gives the memory's rate, the smallest copy in a captured graph an upper bound of a launch, and each
    op's own times replace the price of its stage.

    Args:
        prices: the stated ones.
        rows: of `bench kernels`; those of other chips are left out.
        shape: what a row's case must hold where it names it: kv_heads, query_heads, layers.
        draft_kv: the draft's pool, "bf16" or "fp8".

    Raises:
        ValueError: no row is of this chip.
    """
    own = [row for row in rows if row.measured and _chip_name(row) == prices.device]
    if not own:
        raise ValueError(f"expected measured rows of the {prices.device}, found none: calibrate with its own rows")
    sources, when = dict(prices.sources), own[-1].run.started[:10]
    # Contained in every time.
    empty_us = next((row.figures["p50_us"] for row in own if row.subject == "event_pair"), 0.0)
    for row in own:
        if row.benchmark == "device" and row.subject == "device_copy":
            rate = row.figures["bandwidth_gb_per_s"]
            prices = replace(prices, bytes_per_s=rate * 1e9)
            sources["memory"] = f"measured copy, {rate:.0f} GB/s ({when})"
    timed = [row for row in own if row.how.get("mode") == "graph" and row.how.get("cache", "cold") == "cold"]
    if copies := [row.figures["p50_us"] - empty_us for row in timed if row.subject == "device_copy"]:
        launch_us = max(min(copies), 0.0)
        prices = replace(prices, launch_us=launch_us, eager_launch_us=max(prices.eager_launch_us, launch_us))
        sources["launch"] = f"{launch_us:.2f} us, the smallest copy in a graph ({when})"
    if op_us := _op_times(timed, empty_us, shape, draft_kv):
        sources["ops"] = f"measured: {', '.join(sorted(f'{op} ({path})' for op, path in op_us))} ({when})"
    return replace(prices, sources=sources, op_us=op_us)


def _chip_name(row: Row) -> str | None:
    chip = chip_named(row.run.device["name"])
    return chip.name if chip else None


def _op_times(
    rows: Iterable[Row], empty_us: float, shape: Mapping[str, int], draft_kv: str
) -> dict[tuple[str, str], Sequence[tuple[int, float]]]:
    """By op and path: the time at each number of rows, of ours the quickest backend's."""
    times: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        case = row.case
        same_shape = all(case.get(name, value) == value for name, value in shape.items())
        if "tokens" in case and same_shape and str(case.get("pool_dtype")).startswith(POOL_NAMES[draft_kv]):
            of_op, tokens = times.setdefault((row.benchmark, _path(row.subject)), {}), int(case["tokens"])
            us = max(row.figures["p50_us"] - empty_us, 0.0)
            of_op[tokens] = min(us, of_op.get(tokens, us))
    for op in {op for op, _ in times}:
        # Where its fused kernel does not apply, SGLang runs the unfused path.
        if (op, UNFUSED) in times:
            times.setdefault((op, "sglang"), times[op, UNFUSED])
    return {key: tuple(sorted(found.items())) for key, found in times.items() if key[1] in ("ours", "sglang")}


def _path(subject: str) -> str:
    """Rows name a backend of ours, or what is not ours; of SGLang's, its kernel as it launches it itself counts."""
    return subject if subject.startswith("sglang") or subject in (UNFUSED, "device_copy") else "ours"
