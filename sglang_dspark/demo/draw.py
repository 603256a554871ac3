"""Random weights that come out the same on every machine.

`torch.rand` makes a float from the bits of the Mersenne twister alone, while `torch.randn` passes through logarithms
and cosines whose last bit depends on the CPU's vector unit. So every draw here is uniform.
"""

from __future__ import annotations

import hashlib
import math

import torch


class Draw:
    """Draws tensors by name: the same seed and name give the same values, whatever else was drawn before."""

    def __init__(self, seed: int, part: str) -> None:
        self._seed = seed
        self._part = part

    def uniform(self, name: str, *shape: int, std: float) -> torch.Tensor:
        """A float64 tensor of this shape, uniform around zero with the given standard deviation."""
        half_width = math.sqrt(3.0) * std
        return (2 * torch.rand(*shape, generator=self._generator(name)).double() - 1) * half_width

    def signs(self, name: str, *shape: int) -> torch.Tensor:
        """A float64 tensor of +1 and -1."""
        return torch.randint(0, 2, shape, generator=self._generator(name)).double() * 2 - 1

    def integers(self, name: str, *shape: int, high: int) -> torch.Tensor:
        """An int64 tensor of values from 0 to high - 1."""
        return torch.randint(0, high, shape, generator=self._generator(name))

    def _generator(self, name: str) -> torch.Generator:
        digest = hashlib.sha256(f"{self._seed}/{self._part}/{name}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
