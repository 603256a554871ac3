"""Kernels compiled from `hip/`: how they are built, kept, loaded and launched.

    toolchain.py  the compilers of each target, and their command lines
    cache.py      built files, private to the user, published whole or not at all
    code.py       the compiled file of a target: prebuilt with the package, or built now
    driver.py     the module API of libamdhip64 and libcuda, by ctypes: load, look up, launch

The ops' backends use these (`ops/context_kv/host_backend.py` and its neighbours); nothing here knows an op.
`python -m sglang_dspark.ops.native` builds the files that travel with the wheel.
"""
