#!/usr/bin/env bash
# Installs the LLVM tools that compile, assemble and disassemble AMD GPU code: no ROCm, no GPU. The tests that run our
# kernels' machine code in an interpreter need them (tests/amdgcn); without them those tests are skipped, and say so.
set -euo pipefail

PACKAGES=(clang-22 lld-22 llvm-22)
TOOLS=(clang-22 ld.lld-22 llvm-mc-22 llvm-objdump-22)
LOG=${TMPDIR:-/tmp}/sglang-dspark-amd-tools.log

missing() { for tool in "${TOOLS[@]}"; do command -v "$tool" >/dev/null || echo "$tool"; done; }

[ -n "$(missing)" ] || exit 0
if [ "$EUID" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "This machine lacks $(missing | xargs). As root: apt-get install -y ${PACKAGES[*]} (or your system's LLVM 22)" >&2
    exit 1
fi
echo "Installing ${PACKAGES[*]} with apt-get"
if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${PACKAGES[@]}"; } \
    >"$LOG" 2>&1; then
    tail -n 5 "$LOG" >&2
    echo "apt-get could not install ${PACKAGES[*]}: see $LOG" >&2
    exit 1
fi
[ -z "$(missing)" ] || { echo "After the installation this machine still lacks $(missing | xargs)" >&2; exit 1; }
