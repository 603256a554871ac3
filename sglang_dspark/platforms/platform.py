"""What a platform is: the facts that a backend may ask for, and the order in which it offers backends.

A frozen value, so that a test describes a machine it does not have and nothing has to be patched.
"""

from __future__ import annotations

from dataclasses import dataclass


class UnsupportedPlatform(RuntimeError):
    """The machine is known and not covered, or its architecture name says nothing to us."""


@dataclass(frozen=True)
class Platform:
    """One machine, as the rest of the package sees it.

    ``name`` is "amd", "nvidia" or "cpu"; ``arch`` is e.g. "gfx942", "sm_90" or "cpu"; ``device_type`` is what torch
    calls the device (ROCm says "cuda"); ``fp8_format`` is the 8-bit float that the matrix units of this machine read;
    ``warp_size`` is the number of lanes that run in lockstep (a wavefront on AMD, 1 on a CPU).
    """

    name: str
    arch: str
    device_type: str
    fp8_format: str
    warp_size: int
    offers: tuple[tuple[str, tuple[str, ...]], ...]

    def backends(self, op_name: str) -> tuple[str, ...]:
        """The backends this platform offers for an op, best first."""
        for name, backends in self.offers:
            if name == op_name:
                return backends
        known = ", ".join(name for name, _ in self.offers)
        raise KeyError(
            f"platform {self.name} was asked for the backends of op {op_name!r} and offers only {known}: "
            f"add the op to `OFFERS` in platforms/{self.name}.py"
        )
