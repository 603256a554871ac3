"""Every parity case, named or drawn, with the host kernel under AddressSanitizer and UndefinedBehaviorSanitizer.

CI asks for both kernels by name (DSPARK_REQUIRE_EXECUTORS), so that a compiler without the runtimes fails it. In a
process of its own: the sanitizer's runtime must be loaded before anything else.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_dspark.ops.native import code, toolchain
from tests.reports import RAN

from ..context_kv.native_support import host_missing

HERE = Path(__file__).parent
CHILDREN = {
    "context_kv_writer": HERE / "sanitized_child.py",
    "qk_norm_rope_insert": HERE.parent / "qk_norm_rope" / "sanitized_child.py",
}
# The named cases that each kernel covers: one that is left out must be noticed.
NAMED = {"context_kv_writer": 52, "qk_norm_rope_insert": 49}
RUNTIMES = ("libasan.so", "libubsan.so")


def runtime(name: str) -> str:
    """The path of a sanitizer's shared runtime, empty when the compiler has none."""
    answer = subprocess.run([toolchain.HOST.compiler(), f"-print-file-name={name}"], capture_output=True, text=True)
    return answer.stdout.strip() if os.path.isabs(answer.stdout.strip()) else ""


@pytest.fixture(scope="module", params=CHILDREN)
def kernels(request, tmp_path_factory) -> tuple[Path, Path]:
    """The child of a kernel source, and its host kernels with both sanitizers."""
    if reason := host_missing():
        pytest.skip(reason)
    if not all(runtime(name) for name in RUNTIMES):
        pytest.skip("the C++ compiler has no shared sanitizer runtimes")
    output, tools = tmp_path_factory.mktemp("sanitized") / "kernels.so", toolchain.HOST
    flags = [*tools.arguments("host"), "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    source = code.SOURCES / f"{request.param}.cpp"
    subprocess.run([tools.compiler(), *flags, str(source), "-o", str(output)], check=True)
    return CHILDREN[request.param], output


def run_child(child: Path, library: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(map(runtime, RUNTIMES)),
        "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join(path for path in (str(child.parents[4]), *sys.path) if path),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(child), str(library), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_no_case_touches_what_it_should_not(kernels, request):
    run = run_child(*kernels)
    assert run.returncode == 0, run.stderr[-3000:]
    named, drawn = (int(number) for number in re.findall(r"\d+", run.stdout))
    op = {"context_kv_writer": "context_kv", "qk_norm_rope_insert": "qk_norm_rope"}
    source = next(source for source, child in CHILDREN.items() if child == kernels[0])
    assert named == NAMED[source] and drawn >= 100
    request.config.stash[RAN].add(f"{op[source]}/host/asan-ubsan")


@pytest.mark.slow
def test_the_sanitizer_sees_the_kernel(kernels):
    """A run that catches nothing proves nothing: a table one row too short is caught."""
    run = run_child(*kernels, "short")
    assert run.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in run.stderr
