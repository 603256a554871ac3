"""Who may import whom. A layer that reaches up (an op that imports SGLang, say) can no longer be tested, reused or
compiled without a server; nothing else would notice until it hurts."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sglang_dspark

PACKAGE = Path(sglang_dspark.__file__).parent
BELOW_SGLANG = ("ops", "platforms", "reference", "checkpoints", "demo", "evaluate")
MEETS_SGLANG = ("sglang", "sglang_dspark.serving", "sglang_dspark.models")


def imported(path: Path, at_import_time: bool) -> Iterator[tuple[str, int]]:
    """Every module that the file imports, with its line; functions and `if TYPE_CHECKING:` are not import time."""
    package = ["sglang_dspark", *path.relative_to(PACKAGE).parts[:-1]]

    def walk(node: ast.AST) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            if at_import_time and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            if at_import_time and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from ((alias.name, child.lineno) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                above = package[: len(package) + 1 - child.level] if child.level else []
                base = ".".join([*above, *([child.module] if child.module else [])])
                yield from ((f"{base}.{alias.name}", child.lineno) for alias in child.names)
            else:
                yield from walk(child)

    yield from walk(ast.parse(path.read_text()))


def offences(folder: str, forbidden: tuple[str, ...], at_import_time: bool) -> list[str]:
    return [
        f"{path.relative_to(PACKAGE)}:{line} imports {name}"
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        for name, line in imported(path, at_import_time)
        if any(name == module or name.startswith(module + ".") for module in forbidden)
    ]


@pytest.mark.parametrize("folder", BELOW_SGLANG)
def test_layers_below_sglang_never_import_it(folder: str) -> None:
    assert offences(folder, MEETS_SGLANG, at_import_time=False) == []


@pytest.mark.parametrize("folder", ["bench", "cli"])
def test_commands_import_sglang_only_when_they_need_it(folder: str) -> None:
    """`sglang-dspark doctor` has to start, and say what is wrong, where SGLang cannot be imported; the kernels can be
    timed there."""
    assert offences(folder, MEETS_SGLANG, at_import_time=True) == []


def test_only_platforms_reads_the_vendor() -> None:
    """`torch.version.hip`, gfx names, capabilities: platforms/ reads them. Elsewhere they become `is_rocm` mazes."""
    reads = ("torch.version.hip", "gcnArchName", "get_device_capability")
    found = [
        f"{path.relative_to(PACKAGE)} reads {what}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if "platforms" not in path.relative_to(PACKAGE).parts
        for what in reads
        if what in path.read_text()
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from ..serving import worker", ["sglang_dspark.serving.worker"]),
        ("from . import spec", ["sglang_dspark.ops.spec"]),
        ("try:\n    import sglang.srt\nexcept ImportError:\n    pass", ["sglang.srt"]),
        ("def f():\n    import sglang", []),
        ("if TYPE_CHECKING:\n    import sglang", []),
    ],
)
def test_the_reader_of_imports_sees_them(source: str, names: list[str], tmp_path: Path, monkeypatch) -> None:
    """A reader that finds nothing would pass every test above."""
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "module.py").write_text(source)
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    assert [name for name, _ in imported(tmp_path / "ops" / "module.py", at_import_time=True)] == names
