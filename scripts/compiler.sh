#!/usr/bin/env bash
# Makes sure of a C++ compiler: the tests run the GPU kernels' source as a host program. `make serve` needs none.
set -euo pipefail

LOG=${TMPDIR:-/tmp}/sglang-dspark-compiler.log

for compiler in "${CXX:-c++}" g++ clang++ clang++-22; do
    ! command -v "$compiler" >/dev/null || exit 0
done
if [ "$EUID" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "This machine lacks a C++ compiler. As root: apt-get install -y g++ (or your system's like), then the same command" >&2
    exit 1
fi
echo "Installing g++ with apt-get"
if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends g++; } >"$LOG" 2>&1; then
    tail -n 5 "$LOG" >&2
    echo "apt-get could not install g++: see $LOG" >&2
    exit 1
fi
