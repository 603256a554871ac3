"""Stand-ins for packages that SGLang imports, but never calls, when it serves on a CPU.

SGLang's modules import Triton, its own kernel wheel and torchvision at their top. On a CPU none of their kernels run,
and together they weigh several GB, so the CPU engine leaves them out and this module answers for them: every
attribute exists and may be named, decorated with, subclassed or used as an annotation, and whatever is called or
launched raises a RuntimeError that says what it is.

Gated on ``SGLANG_USE_CPU_ENGINE=1``. A real package always wins where one is installed, with one exception: a CUDA or
ROCm build of ``sgl_kernel`` cannot even be imported without that vendor's driver, and lacks the CPU operations with
it, so only a CPU build of ``sgl_kernel`` takes the stand-in's place.

The stand-ins must be there before anything imports ``sgl_kernel``, which in SGLang's spawned scheduler happens before
plugins load. Hence a ``.pth`` file, which Python runs at every start: ``python -m sglang_dspark.serving.cpu.standins``
writes it into the running environment. For the same reason this module imports nothing heavy.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# `datasets` is for SGLang's benchmark client, which imports the readers of all its data sets, downloaded ones included.
PACKAGES = ("triton", "sgl_kernel", "torchvision", "IPython", "datasets")

# SGLang takes these from sgl_kernel on a CPU; our torch versions stand in for them.
CPU_OPS = (
    "assign_req_to_token_pool_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_draft_cache_locs_contiguous_cpu",
    "copy_all_layer_kv_cache_cpu",
)
CPU_BUILDS_OF_SGL_KERNEL = ("sglang-kernel-cpu", "sgl-kernel-cpu")

# These ask whether a package exists in order to use it. They get the truth, or transformers would build torchvision
# image processors and torch would compile Triton code.
ASKERS = ("importlib.util", "torch.utils._triton")

PTH_NAME = "sglang_dspark_cpu_engine.pth"
PTH_LINE = (
    "import os; os.environ.get('SGLANG_USE_CPU_ENGINE') == '1' and "
    "__import__('sglang_dspark.serving.cpu.standins', fromlist=['install']).install()\n"
)


class _Base:
    """What a class that inherits from a stand-in inherits from."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__()


class StandIn:
    """An attribute of a missing package: good for naming, never for calling."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> "StandIn":
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        child = StandIn(f"{self._name}.{attribute}")
        setattr(self, attribute, child)
        return child

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Say what was called, and why it is not here."""
        raise RuntimeError(
            f"{self._name} was called, but only a stand-in of it is here: this is SGLang's CPU engine "
            "(SGLANG_USE_CPU_ENGINE=1), and this package is not installed. The feature in the traceback needs a GPU, "
            "or a CPU path that sglang-dspark does not have yet."
        )

    def __getitem__(self, key: Any) -> Any:
        return self()  # kernel[grid](...) launches

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return (_Base,)

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __or__(self, other: Any) -> "StandIn":
        return self  # annotations: tl.tensor | None

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<stand-in for {self._name}>"


class StandInModule(types.ModuleType):
    """A missing package, or any module below it."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        name = f"{self.__name__}.{attribute}"
        value: Any = StandIn(name)
        if self.__name__ == "sgl_kernel" and attribute in CPU_OPS:
            value = getattr(importlib.import_module("sglang_dspark.serving.cpu.ops"), attribute)
        elif name in HOST_SIDE:
            value = importlib.import_module(name)
        setattr(self, attribute, value)
        return value


class _Constexpr:
    """triton.language.constexpr: an annotation, and a box whose value SGLang reads at import."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Config:
    """triton.Config: autotuning lists are built, and their ``kwargs`` read, at import."""

    def __init__(self, kwargs: dict[str, Any], **options: Any) -> None:
        self.kwargs = kwargs


def _kernel(function: Any) -> StandIn:
    name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"
    return StandIn(f"the Triton kernel {name}")


def _jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """triton.jit, with and without options."""
    return _kernel if function is None else _kernel(function)


def _decorator(*arguments: Any, **options: Any) -> Callable[[Any], Any]:
    """triton.autotune and triton.heuristics: leave the kernel under them as it is."""
    return lambda kernel: kernel


# What SGLang calls or reads on the host side even when it launches no kernel, and so has to work; by module.
HOST_SIDE: dict[str, dict[str, Any]] = {
    "triton": {
        "__version__": "0.0.0",
        "jit": _jit,
        "autotune": _decorator,
        "heuristics": _decorator,
        "Config": _Config,
        "cdiv": lambda a, b: -(a // -b),
        "next_power_of_2": lambda n: 1 << (n - 1).bit_length() if n > 0 else 1,
    },
    "triton.language": {"constexpr": _Constexpr},
    "triton.experimental.gluon": {"jit": _jit},
    "IPython": {"get_ipython": lambda: None, "version_info": (9, 0, 0)},  # matplotlib asks: no shell is running
    "triton.knobs": {"compilation": None},  # SGLang's triton_load_watch reads: a Triton without these hooks
}


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> StandInModule:
        return StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__.update(HOST_SIDE.get(module.__name__, {}))


class _Finder(importlib.abc.MetaPathFinder):
    """Answers for ``packages`` when it is reached, which at the end of sys.meta_path means: when nobody else did."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = packages

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package = name.split(".", 1)[0]
        if package not in self.packages or _importer() in ASKERS:
            return None
        if name == package:
            _settle_answers(package)
        return importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)


class _SglKernelFinder(_Finder):
    """Goes first, so that it is asked before a CUDA or ROCm build of sgl_kernel is found; steps aside for a CPU one."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "sgl_kernel" and any(_is_installed(build) for build in CPU_BUILDS_OF_SGL_KERNEL):
            self.packages = ()
        return super().find_spec(name, path, target)


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _importer() -> str:
    """The module whose import statement, or whose question, led to find_spec."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__") in (__name__, "importlib", "importlib._bootstrap"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


def _settle_answers(package: str) -> None:
    """Let torch and transformers ask, and cache the truth, before the stand-in is in sys.modules for them to see."""
    if package == "triton":
        importlib.import_module("torch.utils._triton").has_triton_package()
    elif package == "torchvision":
        importlib.import_module("transformers.utils.import_utils").is_torchvision_available()
    elif package == "datasets":
        importlib.import_module("transformers.utils.import_utils").is_datasets_available()


def install() -> None:
    """Put the stand-ins behind the installed packages, once, if this is the CPU engine.

    Also turns torch.compile off. SGLang decorates functions with it at import, which imports torch's compiler, which
    would build on the stand-in Triton and fail; and it would need a C++ compiler where this engine asks for none.
    """
    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1" or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    sys.meta_path.insert(0, _SglKernelFinder(["sgl_kernel"]))
    sys.meta_path.append(_Finder(PACKAGES))


def write_pth(site_packages: Path | None = None) -> Path:
    """Make every Python that starts in this environment call `install`; returns the file written."""
    path = (site_packages or Path(sysconfig.get_paths()["purelib"])) / PTH_NAME
    path.write_text(PTH_LINE)
    return path


if __name__ == "__main__":
    print(write_pth())
