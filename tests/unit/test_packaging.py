"""What an installation depends on, and what SGLang and the shell find in it."""

import ast
import importlib.metadata
import re
from pathlib import Path

import sglang_dspark

ROOT = Path(__file__).parents[2]


def pins(name: str) -> dict[str, str]:
    lines = (line.split("#")[0].strip() for line in (ROOT / "requirements" / name).read_text().splitlines())
    return dict(line.split("==") for line in lines if line)


def constant(path: Path, name: str) -> str:
    """A module's constant, read without importing the module (contract.py may import SGLang)."""
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return ast.literal_eval(node.value)
    raise AssertionError(f"{path} has no {name}")


def core_requirements() -> list[str]:
    return [line for line in importlib.metadata.requires("sglang-dspark") or [] if "extra ==" not in line]


def test_sglang_finds_the_plugin_and_the_shell_the_command() -> None:
    entry_points = importlib.metadata.distribution("sglang-dspark").entry_points
    found = {(entry.group, entry.name, entry.value) for entry in entry_points}
    assert ("sglang.srt.plugins", "dspark", "sglang_dspark.serving.plugin:register") in found
    assert ("console_scripts", "sglang-dspark", "sglang_dspark.cli:main") in found


def test_every_entry_point_names_a_module_and_a_function_that_exist() -> None:
    """SGLang only logs a plugin that it cannot load: a renamed function would leave a server without it."""
    for entry in importlib.metadata.distribution("sglang-dspark").entry_points:
        module = Path(sglang_dspark.__file__).parents[1] / Path(*entry.module.split("."))
        path = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
        source = path.read_text()
        assert re.search(rf"^(async )?def {entry.attr}\(|^from .* import .*\b{entry.attr}\b", source, re.M), entry


def test_the_core_never_replaces_an_image_s_torch_or_sglang() -> None:
    """A bound on torch, or SGLang itself (which pins torch), would make pip swap a ROCm build for a CUDA one."""
    assert "torch" in core_requirements()
    assert not [line for line in core_requirements() if re.match(r"(sglang|triton|torch.+)\b", line)]


def test_one_version_of_sglang() -> None:
    contract = constant(ROOT / "sglang_dspark" / "serving" / "contract.py", "SGLANG_VERSION")
    extra = [line for line in importlib.metadata.requires("sglang-dspark") or [] if line.startswith("sglang==")]
    assert pins("cpu-engine-no-deps.txt")["sglang"] == contract
    assert [line.split(";")[0].strip() for line in extra] == [f"sglang=={contract}"]


def test_what_is_installed_is_what_is_pinned() -> None:
    """A tool or a test that pulled in another torch would make every result here a result about that torch."""
    for name, version in {**pins("cpu-engine.txt"), **pins("cpu-engine-no-deps.txt")}.items():
        assert importlib.metadata.version(name).split("+")[0] == version, name
