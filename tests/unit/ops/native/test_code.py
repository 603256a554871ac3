"""Which file a target gets: prebuilt while its sources are the same, else built; and how a missing compiler shows."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_dspark.ops.native import cache, code, toolchain
from sglang_dspark.ops.native.toolchain import AMD, HOST, NVIDIA, NotBuilt


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """A cache, a prebuilt folder and sources of their own."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "kernels"))
    monkeypatch.setattr(code, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setattr(code, "SOURCES", tmp_path / "hip")
    (tmp_path / "prebuilt").mkdir()
    (tmp_path / "hip").mkdir()
    (tmp_path / "hip" / "kernel.cpp").write_text('#include "part.h"\n')
    (tmp_path / "hip" / "part.h").write_text("int part;\n")
    return tmp_path


def stand_in_compiler(places, script: str) -> toolchain.Toolchain:
    """A toolchain whose compiler is a shell script; its last argument is the output."""
    program = places / "compiler"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return replace(HOST, candidates=(str(program),), variable="NO_SUCH_VARIABLE")


COMPILES = 'for last; do :; done; [ "$1" = --version ] && echo "compiler 1.0" || echo "$@" > "$last"'


def test_built_once(places):
    tools = stand_in_compiler(places, f"echo run >> {places}/runs; {COMPILES}")
    first = code.compiled("kernel", tools, "host")
    assert code.compiled("kernel", tools, "host") == first
    assert (places / "runs").read_text().count("run") == 3  # a version, a build, a version
    assert "-ffp-contract=off" in first.read_text()


@pytest.mark.parametrize("change", ["header", "flags", "arch", "compiler"])
def test_anything_that_matters_makes_another_file(places, change):
    tools, arch = stand_in_compiler(places, COMPILES), "host"
    first = code.compiled("kernel", tools, arch)
    if change == "header":
        (places / "hip" / "part.h").write_text("int other;\n")
    elif change == "flags":
        tools = replace(tools, flags=(*tools.flags, "-g"))
    elif change == "arch":
        arch = "other"
    else:
        stand_in_compiler(places, COMPILES.replace("1.0", "2.0"))
    assert code.compiled("kernel", tools, arch) != first


def test_prebuilt_needs_no_compiler(places):
    prebuilt = places / "prebuilt" / code.file_name("kernel", AMD, "gfx942")
    prebuilt.write_bytes(b"code")
    tools = replace(AMD, candidates=("no-such-compiler",))
    assert code.compiled("kernel", tools, "gfx942") == prebuilt
    with pytest.raises(NotBuilt):
        code.compiled("kernel", tools, "gfx950")
    (places / "hip" / "part.h").write_text("int newer;\n")
    with pytest.raises(NotBuilt):
        code.compiled("kernel", tools, "gfx942")


@pytest.mark.parametrize("tools", [HOST, AMD, NVIDIA], ids=lambda tools: tools.name)
def test_a_missing_compiler_is_one_line(tools, monkeypatch):
    monkeypatch.delenv(tools.variable, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    gone = replace(tools, candidates=tuple(f"/nowhere/{name}" for name in tools.candidates))
    with pytest.raises(
        NotBuilt, match=f"no {re.escape(tools.name)} compiler: tried .* or set {tools.variable}"
    ) as raised:
        gone.compiler()
    assert "\n" not in str(raised.value)


def test_the_compiler_that_was_asked_for_is_not_replaced(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NotBuilt, match="tried no-such-compiler"):
        HOST.compiler()


def test_a_failing_compiler_is_one_line(places):
    script = '[ "$1" = --version ] && exit 0; echo "In file included" >&2; echo "kernel.cpp:1: error: no" >&2; exit 3'
    with pytest.raises(NotBuilt, match="failed with status 3: kernel.cpp:1: error: no$"):
        code.compiled("kernel", stand_in_compiler(places, script), "host")
    assert list((places / "kernels").iterdir()) == []


def test_prebuild_writes_what_is_found_again(places, monkeypatch, capsys):
    """`python -m sglang_dspark.ops.native`, and older files of the same chip removed."""
    from sglang_dspark.ops.native import __main__ as prebuild

    tools = stand_in_compiler(places, COMPILES)
    monkeypatch.setattr(code, "PREBUILT_ARCHS", {tools: ("gfx942",), replace(AMD, candidates=()): ("gfx950",)})
    (places / "prebuilt" / "kernel-gfx942-old.so").write_text("")
    assert prebuild.main([]) == 0
    assert "kernel for gfx950: not built: no AMD GPU compiler" in capsys.readouterr().err
    assert [path.name for path in (places / "prebuilt").iterdir()] == [code.file_name("kernel", tools, "gfx942")]
    assert prebuild.main(["gfx950"]) == 1
    assert prebuild.main(["gfx1100"]) == 2
    assert "unknown architectures: gfx1100" in capsys.readouterr().err


def test_the_wheel_takes_every_source_along():
    """A header that stays behind would only show where someone installs the wheel and has a compiler."""
    native = Path(code.__file__).parent
    patterns = (
        (native.parents[2] / "pyproject.toml").read_text().split('"sglang_dspark.ops.native" = [')[1].split("]")[0]
    )
    sources = [path for path in (native / "hip").iterdir() if path.suffix in (".h", ".cpp")]
    assert len(sources) >= 4
    for path in sources:
        assert f'"hip/*{path.suffix}"' in patterns, path.name
    assert '"prebuilt/*"' in patterns
