"""The machine as a server would see it: the platform, how many devices, how much memory each."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from sglang_dspark import platforms
from sglang_dspark.platforms import Platform


@dataclass(frozen=True)
class Machine:
    """What recommendations depend on. `device_bytes` is the smallest device's memory, the host's on a CPU."""

    platform: Platform
    devices: int
    device_bytes: int

    def describe(self) -> str:
        """One line for people."""
        what = "host" if self.platform.device_type == "cpu" else "GPUs"
        arch = "" if self.platform.arch == self.platform.name else f" ({self.platform.arch})"
        return f"{self.platform.name}{arch}, {self.devices} {what} of {self.device_bytes / 1e9:.1f} GB"


def current() -> Machine:
    """This machine; it initialises torch's GPU, which ends with this process or with the program it becomes.

    Raises:
        UnsupportedPlatform: a card that the project does not cover.
    """
    platform = platforms.current()
    if platform.device_type == "cpu":
        return Machine(platform, 1, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    count = torch.cuda.device_count()
    return Machine(platform, count, min(torch.cuda.get_device_properties(i).total_memory for i in range(count)))
