"""The two chips that are emulated, and what their documents leave open.

Sources: AMD Instinct MI300 and MI350 instruction set references (CDNA3, CDNA4), LLVM's AMDGPU usage guide.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """A chip, and one choice wherever real chips may differ. A kernel must give the same bytes under every choice.

    ``approximation_ulps`` is added to what v_rcp, v_rsq and v_sqrt return: they are good to one unit in the last place,
    and 0 means correctly rounded. With an ``approximation_seed`` it is -1, 0 or 1 instead, as the result decides.
    ``fnuz_negative_zero`` is the byte that v_cvt_pk_fp8_f32 makes of a value that rounds to -0: e4m3fnuz has no such
    number, and 0x80 is its NaN.
    """

    name: str
    fp8_is_fnuz: bool
    approximation_ulps: int = 0
    approximation_seed: int = 0
    fnuz_negative_zero: int = 0x80


GFX942 = Chip("gfx942", fp8_is_fnuz=True)
GFX950 = Chip("gfx950", fp8_is_fnuz=False)
CHIPS = {chip.name: chip for chip in (GFX942, GFX950)}
