"""The stand-ins decide what SGLang, torch and transformers believe about the machine, so each case runs in a fresh
interpreter: without the `.pth` file (-S keeps it out), with only the packages that the case provides."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_dspark.serving.cpu import standins

ROOT = Path(__file__).parents[3]


def run(code: str, *paths: Path, cpu_engine: bool = True) -> str:
    """The code's output, in a Python that sees our package, `paths`, and no site-packages."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*paths, ROOT]))}
    environment["SGLANG_USE_CPU_ENGINE"] = "1" if cpu_engine else "0"
    prelude = "from sglang_dspark.serving.cpu import standins\nstandins.install()\n"
    command = [sys.executable, "-S", "-c", prelude + code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def askers(tmp_path: Path) -> Path:
    """Small doubles of torch and transformers, with the two questions whose answers the stand-ins must not change."""
    files = {
        "torch/__init__.py": "",
        "torch/utils/__init__.py": "",
        "torch/utils/_triton.py": """
            import functools
            @functools.cache
            def has_triton_package():
                try:
                    import triton
                    return True
                except ImportError:
                    return False
            """,
        "transformers/__init__.py": "",
        "transformers/utils/__init__.py": "",
        "transformers/utils/import_utils.py": """
            import functools, importlib.util
            @functools.lru_cache
            def is_torchvision_available():
                return importlib.util.find_spec("torchvision") is not None
            @functools.lru_cache
            def is_datasets_available():
                return importlib.util.find_spec("datasets") is not None
            """,
    }
    folder = tmp_path / "askers"
    write(folder, files)
    return folder


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = text.strip("\n").splitlines()
        indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        path.write_text("\n".join(line[indent:] for line in lines) + "\n")


def test_nothing_is_installed_outside_the_cpu_engine() -> None:
    """On a GPU machine a missing Triton must stay an ImportError, not become a kernel that raises on launch."""
    code = "import sys; print([f for f in sys.meta_path if 'standins' in type(f).__module__])"
    assert run(code, cpu_engine=False) == "[]"


def test_install_twice_adds_nothing_and_imports_nothing_heavy() -> None:
    """The .pth file and the plugin both call it, at every interpreter start."""
    code = """
import sys
before = len(sys.meta_path); standins.install()
print(len(sys.meta_path) - before, [m for m in ('torch', 'transformers', 'numpy', 'sglang') if m in sys.modules])
"""
    assert run(code) == "0 []"


def test_what_sglang_does_with_triton_at_import_works(askers: Path) -> None:
    code = """
import triton, triton.language as tl
from triton.language.extra import libdevice
from triton.experimental import gluon
@triton.autotune(configs=[triton.Config({'BLOCK': 64}, num_warps=4)], key=['n'])
@triton.heuristics({'EVEN': lambda args: True})
@triton.jit(do_not_specialize=['n'])
def kernel(x, n, BLOCK: tl.constexpr, dtype: tl.dtype | None = None): ...
@gluon.jit
def other(x): ...
class Subclass(triton.runtime.KernelInterface): ...
print(triton.cdiv(7, 2), triton.next_power_of_2(5), tl.constexpr(3).value, isinstance(1, tl.dtype), type(Subclass()))
"""
    assert run(code, askers) == "4 8 3 False <class '__main__.Subclass'>"


@pytest.mark.parametrize("form", ["import triton.knobs as knobs", "from triton import knobs"])
def test_the_watch_on_kernel_loads_finds_no_hooks(form: str, askers: Path) -> None:
    """SGLang's scheduler installs it when it starts serving (srt/utils/triton_load_watch.py), and would call add()."""
    assert run(f"{form}\nprint(hasattr(knobs.compilation, 'listener'))", askers) == "False"


@pytest.mark.parametrize(
    ("launch", "name"),
    [
        ("kernel[(1,)](0)", "the Triton kernel __main__.kernel"),
        ("import sgl_kernel; sgl_kernel.rmsnorm(0)", "sgl_kernel.rmsnorm"),
        ("import torchvision; torchvision.ops.nms(0)", "torchvision.ops.nms"),
        ("from datasets import load_dataset; load_dataset('x')", "datasets.load_dataset"),
    ],
)
def test_a_stand_in_that_is_used_says_what_it_is(launch: str, name: str, askers: Path) -> None:
    """Fault 2. The prototype returned a do-nothing function here: a kernel that silently writes nothing."""
    code = f"""
import triton
@triton.jit
def kernel(x): ...
try:
    {launch}
except RuntimeError as error:
    print(error)
"""
    message = run(code, askers)
    assert message.startswith(f"{name} was called, but only a stand-in of it is here")
    assert "SGLANG_USE_CPU_ENGINE=1" in message


def test_torch_and_transformers_go_on_believing_the_packages_are_absent(askers: Path) -> None:
    """Asked before or after SGLang imported the stand-ins; else torch compiles Triton code and transformers builds
    torchvision image processors."""
    after = """
import triton, torchvision, datasets
from torch.utils._triton import has_triton_package
from transformers.utils.import_utils import is_datasets_available, is_torchvision_available
print(has_triton_package(), is_torchvision_available(), is_datasets_available())
"""
    before = after.replace("import triton, torchvision, datasets\n", "") + after
    assert run(after, askers) == "False False False"
    assert run(before, askers) == "False False False\nFalse False False"


def test_there_is_no_shell() -> None:
    """matplotlib asks IPython for the running one as soon as somebody has imported it, and looks at its version."""
    assert run("import IPython; print(IPython.get_ipython(), IPython.version_info[:2] >= (8, 24))") == "None True"


@pytest.mark.parametrize("package", standins.PACKAGES)
def test_a_question_is_answered_with_the_truth(package: str) -> None:
    assert run(f"import importlib.util; print(importlib.util.find_spec({package!r}))") == "None"


@pytest.mark.parametrize("package", ["triton", "torchvision", "IPython", "datasets"])
def test_an_installed_package_wins(package: str, tmp_path: Path) -> None:
    write(tmp_path, {f"{package}/__init__.py": "origin = 'real'"})
    assert run(f"import {package}; print({package}.origin)", tmp_path) == "real"


def test_sgl_kernel_real_only_when_built_for_cpu(tmp_path: Path) -> None:
    """A CUDA wheel raises at import without libcuda, and SGLang imports sgl_kernel before any plugin can help."""
    write(tmp_path, {"sgl_kernel/__init__.py": "origin = 'real'", "sgl_kernel/flash_attn.py": "origin = 'real'"})
    code = "import sgl_kernel, sgl_kernel.flash_attn as f; print(sgl_kernel.origin, f.origin)"
    assert run(code, tmp_path) == "<stand-in for sgl_kernel.origin> <stand-in for sgl_kernel.flash_attn.origin>"
    metadata = "Metadata-Version: 2.1\nName: sglang-kernel-cpu\nVersion: 0.4"
    write(tmp_path, {"sglang_kernel_cpu-0.4.dist-info/METADATA": metadata})
    assert run(code, tmp_path) == "real real"


def test_sgl_kernel_carries_our_cpu_operations() -> None:
    from sglang_dspark.serving.cpu import ops

    module = standins.StandInModule("sgl_kernel")
    for name in standins.CPU_OPS:
        assert getattr(module, name) is getattr(ops, name)


def test_the_pth_file_installs_them_in_every_new_interpreter(tmp_path: Path) -> None:
    """SGLang's scheduler is a spawned process: only what Python itself runs at start is there early enough."""
    path = standins.write_pth(tmp_path)
    code = f"""
import site, sys
sys.meta_path[:] = [f for f in sys.meta_path if 'standins' not in type(f).__module__]
site.addsitedir({str(path.parent)!r})
print(len([f for f in sys.meta_path if 'standins' in type(f).__module__]))
"""
    assert run(code) == "2"
    assert run(code, cpu_engine=False) == "0"
