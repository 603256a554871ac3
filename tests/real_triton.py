"""Whether Triton is installed, asked of the installation: in this process a stand-in may answer to the name."""

from __future__ import annotations

import importlib.metadata

INSTALLED = "triton" in importlib.metadata.packages_distributions()

# Variables that a child process which compiles with Triton must not inherit: one interprets, one brings the stand-ins.
KEPT_OUT = ("TRITON_INTERPRET", "SGLANG_USE_CPU_ENGINE")
