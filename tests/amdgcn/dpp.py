"""DPP: a vector operand taken from other lanes. Which lane each reads, which reads are invalid, which lanes write.

Rows are 16 lanes, banks 4. "shl" moves data to lower lanes: a lane reads from a higher one. A read from outside the row
or from a lane that EXEC turned off is invalid: with bound_ctrl:1 it gives 0, without it the lane keeps its old result.
The lanes that row_mask and bank_mask turn off are read all the same, and not written.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .decode import numbers
from .registers import LANES, UnknownInstruction

LANE = np.arange(LANES)
ROW, IN_ROW = LANE // 16, LANE % 16
OTHER_MODIFIERS = ("row_mask", "bank_mask", "bound_ctrl")


@dataclass(frozen=True, eq=False)
class LaneMove:
    """What a DPP control does."""

    source: np.ndarray  # [64] the lane that each reads
    inside: np.ndarray  # [64] bool: the read stays in bounds
    writes: np.ndarray  # [64] bool: row and bank masks
    zero_when_invalid: bool

    def apply(self, values: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The moved values [64], and which of the active lanes write their result."""
        valid = self.inside & active[self.source]
        moved = np.where(valid, values[self.source], values.dtype.type(0))
        lanes = active & self.writes
        return moved, lanes if self.zero_when_invalid else lanes & valid


def parse(modifiers: dict[str, str]) -> LaneMove:
    """The move that an instruction's modifiers describe."""
    controls = [(key, value) for key, value in modifiers.items() if key not in OTHER_MODIFIERS]
    if len(controls) != 1:
        raise UnknownInstruction(f"DPP with {modifiers}")
    source, inside = _source(*controls[0])
    row_mask, bank_mask = int(modifiers.get("row_mask", "0xf"), 0), int(modifiers.get("bank_mask", "0xf"), 0)
    writes = (row_mask >> ROW & 1).astype(bool) & (bank_mask >> IN_ROW // 4 & 1).astype(bool)
    return LaneMove(np.clip(source, 0, LANES - 1), inside, writes, "bound_ctrl" in modifiers)


def _source(control: str, value: str) -> tuple[np.ndarray, np.ndarray]:
    everywhere = np.ones(LANES, bool)
    if control == "quad_perm":
        return LANE - LANE % 4 + np.array(numbers(value))[LANE % 4], everywhere
    if control == "row_mirror":
        return LANE - IN_ROW + 15 - IN_ROW, everywhere
    if control == "row_half_mirror":
        return LANE - LANE % 8 + 7 - LANE % 8, everywhere
    if not value.isdigit():
        raise UnknownInstruction(f"DPP control {control}:{value}")
    count = int(value)
    if control == "row_shl":
        return LANE + count, IN_ROW + count < 16
    if control == "row_shr":
        return LANE - count, IN_ROW >= count
    if control == "row_ror":
        return LANE - IN_ROW + (IN_ROW - count) % 16, everywhere
    if control == "row_newbcast":
        return LANE - IN_ROW + count, everywhere
    if control == "row_bcast" and count == 15:  # the last lane of each row to the whole next row
        return ROW * 16 - 1, ROW > 0
    if control == "row_bcast" and count == 31:  # lane 31 to the upper half
        return np.full(LANES, 31), LANE >= 32
    if control == "wave_shl" and count == 1:
        return LANE + 1, LANE < 63
    if control == "wave_shr" and count == 1:
        return LANE - 1, LANE > 0
    if control == "wave_rol" and count == 1:
        return (LANE + 1) % LANES, everywhere
    if control == "wave_ror" and count == 1:
        return (LANE - 1) % LANES, everywhere
    raise UnknownInstruction(f"DPP control {control}:{value}")
