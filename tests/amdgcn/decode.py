"""Lines of llvm-objdump's disassembly to instructions: a name, operands and modifiers, still as text.

    v_add_f32_dpp v9, v9, v9 row_mirror row_mask:0xf bank_mask:0xf bound_ctrl:1// 000000002CEC: 021212FA FF094009

The disassembler knows every encoding, so none is decoded here; a bit it does not print (there is none in the
instructions we execute) would be lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

ENCODINGS = ("e32", "e64", "dpp", "sdwa")
CODE_LINE = re.compile(r"^\s+(?P<text>\S.*?)\s*//\s*(?P<address>[0-9A-F]+):(?P<words>(?: [0-9A-F]{8})+)")


@dataclass(frozen=True)
class Instruction:
    """One instruction. ``name`` has no encoding suffix; ``modifiers`` maps a flag to "" and ``key:value`` to value."""

    name: str
    encoding: str
    operands: tuple[str, ...]
    modifiers: dict[str, str] = field(default_factory=dict)
    address: int = 0
    size: int = 4

    def __str__(self) -> str:
        name = f"{self.name}_{self.encoding}" if self.encoding else self.name
        modifiers = [f"{key}:{value}" if value else key for key, value in self.modifiers.items()]
        return f"{self.address:#x}: {name} {' '.join([', '.join(self.operands), *modifiers])}"


def parse_listing(listing: str) -> list[Instruction]:
    """All instructions of a listing, in order."""
    found = (CODE_LINE.match(line) for line in listing.splitlines())
    return [
        parse_text(match["text"], int(match["address"], 16), 4 * len(match["words"].split()))
        for match in found
        if match
    ]


def parse_text(text: str, address: int = 0, size: int = 4) -> Instruction:
    """One instruction from its text, as the disassembler writes it."""
    full_name, _, rest = text.partition(" ")
    name, encoding = full_name, ""
    stem, _, suffix = full_name.rpartition("_")
    if suffix in ENCODINGS:
        name, encoding = stem, suffix
    if name == "s_waitcnt":
        return Instruction(name, encoding, tuple(rest.split()), {}, address, size)
    operands = split_outside_brackets(rest, ",")
    modifiers: dict[str, str] = {}
    if operands:
        last, *flags = split_outside_brackets(operands[-1], " ")
        operands[-1] = last
        for flag in flags:
            key, _, value = flag.partition(":")
            modifiers[key] = value
    return Instruction(name, encoding, tuple(operands), modifiers, address, size)


def split_outside_brackets(text: str, separator: str) -> list[str]:
    """Split, but not inside () or []."""
    pieces, depth, piece = [], 0, ""
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == separator and depth == 0:
            pieces.append(piece.strip())
            piece = ""
        else:
            piece += character
    pieces.append(piece.strip())
    return [piece for piece in pieces if piece]


def numbers(modifier: str) -> list[int]:
    """The numbers of a modifier's list: "[1,0,3,2]"."""
    return [int(number, 0) for number in modifier.strip("[]").split(",")]
