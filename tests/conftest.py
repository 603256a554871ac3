"""Every test runs on SGLang's CPU engine, whichever way pytest was started.

The variable must be there, and the stand-ins in place, before anything imports SGLang; servers that tests start
inherit it. `SGLANG_USE_CPU_ENGINE=0 pytest ...` runs the parity tests on a machine's GPU.
"""

from __future__ import annotations

import os

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
# The models are tiny: more threads than one only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from sglang_dspark.serving.cpu import standins  # noqa: E402  (the variables come first)

standins.install()
