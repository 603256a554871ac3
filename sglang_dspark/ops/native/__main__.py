"""Builds the code objects that travel with the wheel: ``python -m sglang_dspark.ops.native [gfx942 sm_90 ...]``.

Without names, every architecture whose compiler is on this machine. A name whose compiler is missing is an error.
"""

from __future__ import annotations

import os
import shutil
import sys

from sglang_dspark.ops.native import code
from sglang_dspark.ops.native.toolchain import NotBuilt


def main(wanted: list[str]) -> int:
    """Build, and say what was built; non-zero when something asked for could not be."""
    known = {arch: tools for tools, archs in code.PREBUILT_ARCHS.items() for arch in archs}
    if unknown := [arch for arch in wanted if arch not in known]:
        print(f"unknown architectures: {', '.join(unknown)}; known are {', '.join(known)}", file=sys.stderr)
        return 2
    failed = False
    code.PREBUILT.mkdir(exist_ok=True)
    sources = sorted(path.stem for path in code.SOURCES.glob("*.cpp"))
    for arch, source in ((arch, source) for arch in wanted or known for source in sources):
        tools = known[arch]
        target = code.PREBUILT / code.file_name(source, tools, arch)
        try:
            built = code.built(source, tools, arch)
        except NotBuilt as reason:
            print(f"{source} for {arch}: not built: {reason}", file=sys.stderr)
            failed = failed or bool(wanted)
            continue
        for older in code.PREBUILT.glob(f"{source}-{arch}-*"):
            older.unlink()
        # Whole or not at all, as in the cache: a killed build must not travel in a wheel.
        shutil.copyfile(built, unfinished := target.with_name(f".{target.name}"))
        os.replace(unfinished, target)
        print(f"{source} for {arch}: {target}")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
