"""A stage of a round: what it launches, moves, computes and sends. One rank's share, in plain numbers.

Each helper states its rule; nothing here knows a price.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

ACTIVATION_BYTES = 2  # bf16
BF16_BYTES = 2.0


@dataclass(frozen=True)
class Stage:
    """What one rank does in one stage.

    ``launches`` of kernels (collectives not among them); ``moved_bytes`` read and written in memory; ``operations`` are
    floating-point ones, ``narrow`` ones where the weights are fp8; ``wire_bytes`` leave the rank in ``collectives``.
    ``eager`` launches are outside a captured graph. ``op`` names the op that a kernel benchmark times at ``op_rows``
    rows, ``op_calls`` times in this stage.
    """

    part: str
    name: str
    launches: int = 0
    moved_bytes: float = 0.0
    operations: float = 0.0
    narrow: bool = False
    wire_bytes: float = 0.0
    collectives: int = 0
    eager: bool = False
    op: str = ""
    op_rows: int = 0
    op_calls: int = 0

    def times(self, count: int) -> Stage:
        """The stage so many times, of as many layers or steps."""
        return replace(
            self,
            launches=self.launches * count,
            moved_bytes=self.moved_bytes * count,
            operations=self.operations * count,
            wire_bytes=self.wire_bytes * count,
            collectives=self.collectives * count,
            op_calls=self.op_calls * count,
        )


def linear(part: str, name: str, rows: int, width: int, out: int, weight_bytes: float = BF16_BYTES) -> Stage:
    """A product [rows, width] x [width, out]: weights once, activations in and out. fp8 quantises its input first."""
    narrow = weight_bytes < BF16_BYTES
    return Stage(
        part,
        name,
        launches=2 if narrow else 1,
        moved_bytes=width * out * weight_bytes + rows * (width + out) * ACTIVATION_BYTES,
        operations=2.0 * rows * width * out,
        narrow=narrow,
    )


def elementwise(part: str, name: str, values: float, passes: int, launches: int = 1) -> Stage:
    """A small kernel that reads or writes so many bf16 values so many times."""
    return Stage(part, name, launches=launches, moved_bytes=values * passes * ACTIVATION_BYTES)


def norm(part: str, name: str, rows: int, width: int) -> Stage:
    """A norm with the residual added: x and residual read, both written."""
    return elementwise(part, name, rows * width, passes=4)


def all_reduce(part: str, rows: int, width: int, ranks: int) -> Stage:
    """A sum over the ranks of [rows, width]: a ring sends 2 (n - 1) / n of it from every rank, and nothing from one."""
    sent = 2 * (ranks - 1) / ranks * rows * width * ACTIVATION_BYTES
    return Stage(part, "all-reduce", collectives=int(ranks > 1), wire_bytes=sent)


def gather(part: str, name: str, values: float, ranks: int) -> Stage:
    """Every rank ends up with all of so many bf16 values: (n - 1) / n of them arrive from others."""
    return Stage(part, name, collectives=int(ranks > 1), wire_bytes=(ranks - 1) / ranks * values * ACTIVATION_BYTES)


def distinct_experts(experts: int, a_token: int, tokens: float) -> float:
    """How many experts so many tokens reach, each choosing `a_token` of them evenly and independently."""
    return float(experts * (1.0 - (1.0 - a_token / experts) ** tokens))
