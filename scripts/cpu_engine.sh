#!/usr/bin/env bash
# Makes a Python environment in which stock SGLang serves on a CPU, with this checkout installed in it (editable).
#
#   scripts/cpu_engine.sh            # into .venv; a second run takes a moment and changes nothing
#   VENV=/some/where EXTRAS=test scripts/cpu_engine.sh
#
# The pins are in requirements/. SGLang itself goes in without its own requirements, which are CUDA's.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=${VENV:-.venv}
EXTRAS=${EXTRAS:-test,lint,docs}
NEEDED_MIB=4096
STEPS=6
LOG=${VENV%/}.log # beside it, since making the environment empties the folder
STAMP=$VENV/setup.stamp
step=0

say() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }
begin() { step=$((step + 1)); say "$step/$STEPS $*"; }

fail() { # what happened, what to do
    printf '\nSet-up failed: %s\n  What to do: %s\n' "$1" "$2" >&2
    exit 1
}

as_root_or_tell() { # apt packages that are missing
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "    installing $* with apt-get"
        { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y "$@"; } >"${TMPDIR:-/tmp}/sglang-dspark-apt.log" 2>&1 ||
            fail "apt-get could not install $*" "see ${TMPDIR:-/tmp}/sglang-dspark-apt.log"
    else
        fail "this machine lacks $*" "sudo apt-get install -y $*   (or your system's like), then the same command again"
    fi
}

quietly() { # a command; its output goes to the log, and every 15 s the log's last line to the screen
    "$@" >>"$LOG" 2>&1 &
    local pid=$! waited=0
    trap 'kill $pid 2>/dev/null' EXIT
    while kill -0 $pid 2>/dev/null; do
        sleep 1
        waited=$((waited + 1))
        [ $((waited % 15)) -ne 0 ] || say "    $(tail -n 1 "$LOG" | cut -c 1-100)"
    done
    trap - EXIT
    wait $pid || explain
}

explain() {
    echo "--- the end of $LOG" >&2
    tail -n 15 "$LOG" >&2
    if grep -q -E 'No space left' "$LOG"; then
        fail "the disk is full" "free some space; with a CUDA build of torch 8 GB are needed, see requirements/cpu-engine.txt"
    elif grep -q -E 'NewConnectionError|NameResolution|ConnectTimeout|from versions: none|Network is unreachable|ProxyError' "$LOG"; then
        fail "the package index could not be reached" "check the network, or pip's proxy and index settings (pip config list)"
    elif grep -q -E 'No matching distribution' "$LOG"; then
        fail "the package index has no wheel of a pinned version for this machine" \
            "the CPU engine needs Linux on x86_64 or aarch64, glibc 2.34 (Debian 12, Ubuntu 22.04) and Python 3.11 to 3.13"
    fi
    fail "step $step did not work" "the lines above, and $LOG, say why; the same command continues where it stopped"
}

find_python() { # SGLang 0.5.23 has wheels for Python 3.11, 3.12 and 3.13
    local candidate
    for candidate in ${PYTHON:-python3 python3.12 python3.13 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

pip_install() { quietly "$VENV/bin/python" -m pip install --disable-pip-version-check --progress-bar off "$@"; }

fingerprint() {
    { cat requirements/cpu-engine*.txt pyproject.toml scripts/cpu_engine.sh sglang_dspark/serving/cpu/standins.py; pwd; echo "$EXTRAS"; } | sha256sum
}

if [ "$(cat "$STAMP" 2>/dev/null)" = "$(fingerprint)" ] && [ -x "$VENV/bin/python" ]; then
    echo "The CPU engine in $VENV is up to date."
    exit 0
fi

begin "Python and disk space"
PYTHON_FOUND=$(find_python) || {
    command -v python3 >/dev/null || as_root_or_tell python3 python3-venv
    PYTHON_FOUND=$(find_python) || fail "no Python 3.11, 3.12 or 3.13 (python3 is $(python3 --version 2>&1))" \
        "install one (Ubuntu 22.04: apt-get install python3.11 python3.11-venv), or name it: PYTHON=/path/to/python3.12 make setup"
}
say "    $PYTHON_FOUND, $("$PYTHON_FOUND" --version)"
mkdir -p "$VENV"
if [ ! -x "$VENV/bin/python" ]; then
    free_mib=$(df -Pm "$VENV" | awk 'NR == 2 { print $4 }')
    [ "$free_mib" -ge $NEEDED_MIB ] || fail "$free_mib MiB free for $VENV, $NEEDED_MIB needed" "free some space, or VENV=/elsewhere make ..."
fi

: >"$LOG"

begin "virtual environment in $VENV"
if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    "$PYTHON_FOUND" -c 'import ensurepip, venv' 2>/dev/null ||
        as_root_or_tell "$("$PYTHON_FOUND" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    quietly "$PYTHON_FOUND" -m venv --clear "$VENV"
fi

begin "torch and SGLang's dependencies (the long step)"
pip_install --only-binary :all: -r requirements/cpu-engine.txt

begin "SGLang, without its CUDA requirements"
pip_install --only-binary :all: --no-deps -r requirements/cpu-engine-no-deps.txt

begin "sglang-dspark [$EXTRAS] from this checkout"
pip_install --no-build-isolation --constraint requirements/cpu-engine.txt --editable ".[$EXTRAS]"
case ",$EXTRAS," in
*,test,*) pip_install --only-binary :all: --no-deps -r requirements/cpu-engine-test-no-deps.txt ;;
esac
quietly "$VENV/bin/python" -m sglang_dspark.serving.cpu.standins

begin "does it import?"
quietly env SGLANG_USE_CPU_ENGINE=1 "$VENV/bin/python" -W ignore scripts/check_cpu_engine.py

fingerprint >"$STAMP"
say "The CPU engine in $VENV is ready."
