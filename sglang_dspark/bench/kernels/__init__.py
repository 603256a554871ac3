"""`sglang-dspark bench kernels`: every backend of every op, against SGLang's own path and a copy of the same bytes.

op.py                   what the benchmark knows of an op; context_kv.py and qk_norm_rope.py are the two
sglang_context_kv.py,
sglang_qk_norm_rope.py  SGLang's own path for each, from the installed wheel
selection.py            which ops, backends, presets and shapes a run has
law.py                  a backend against the law, in graphs that are replayed with changed inputs
parity.py               the repository's parity suite, where this is a checkout
agreement.py            whether all writers do the same on the timed inputs
stopwatch.py            the timing loop, its statistics, its time budget
timing.py               the timed rows
compiled.py             what compiled code says of itself: registers, bytes, instructions, occupancy
emulated.py             what it executes in the interpreter of `tests/amdgcn`, where this is a checkout
command.py              the run: with a GPU, and without
"""
