"""The module API of a GPU driver, by ctypes: load a code object, look up a kernel, launch it.

HIP's is CUDA's with other names, so one class serves both. Arguments are one packed buffer, which the driver copies
during the call: a launch can be captured in a graph, and the buffer reused at once.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class DriverError(RuntimeError):
    """A driver call failed, or there is no driver."""


@dataclass(frozen=True)
class Api:
    """The names of one driver. ``end`` closes the list of launch options."""

    libraries: tuple[str, ...]
    load: str
    get: str
    launch: str
    end: int


HIP = Api(
    libraries=("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"),
    load="hipModuleLoadData",
    get="hipModuleGetFunction",
    launch="hipModuleLaunchKernel",
    end=3,
)
CUDA = Api(
    libraries=("libcuda.so.1", "libcuda.so"),
    load="cuModuleLoadData",
    get="cuModuleGetFunction",
    launch="cuLaunchKernel",
    end=0,
)
BUFFER_POINTER, BUFFER_SIZE = 1, 2  # the launch options, the same in both


@dataclass(frozen=True, eq=False)
class Driver:
    """A driver library that is loaded."""

    api: Api
    library: Any

    def load(self, image: bytes) -> Module:
        """Load a code object onto the current device."""
        module = ctypes.c_void_p()
        self.call(self.api.load, ctypes.byref(module), ctypes.c_char_p(image))
        return Module(self, module, image)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver; any status but 0 raises."""
        if status := getattr(self.library, name)(*arguments):
            raise DriverError(f"{name} failed with status {status}: see the driver's list of errors")


@dataclass(frozen=True, eq=False)
class Module:
    """A code object on the device, and its image: HIP does not promise that loading is the last time it reads it."""

    driver: Driver
    handle: ctypes.c_void_p
    image: bytes

    def kernel(self, name: str, block_threads: int, arguments: ctypes.Structure) -> Kernel:
        """A kernel bound to its arguments, by reference: change the structure, then launch."""
        function = ctypes.c_void_p()
        self.driver.call(self.driver.api.get, ctypes.byref(function), self.handle, name.encode())
        return Kernel(self, name, function, block_threads, arguments)


class Kernel:
    """A kernel with its arguments. Calling it with the two sizes of the grid and a stream handle launches it."""

    def __init__(
        self, module: Module, name: str, function: ctypes.c_void_p, block_threads: int, arguments: ctypes.Structure
    ) -> None:
        api = module.driver.api
        self._module, self._name, self._function, self._block_threads = module, name, function, block_threads
        # The driver is given addresses only: what they point to stays alive with this object.
        self._arguments, self._size = arguments, ctypes.c_size_t(ctypes.sizeof(arguments))
        self._options = (ctypes.c_void_p * 5)(
            *(BUFFER_POINTER, ctypes.addressof(arguments), BUFFER_SIZE, ctypes.addressof(self._size), api.end)
        )
        self._launch = getattr(module.driver.library, api.launch)
        pointer = ctypes.c_void_p
        self._launch.argtypes = [pointer, *[ctypes.c_uint] * 7, pointer, pointer, pointer]

    def __call__(self, grid_x: int, grid_y: int, stream: int) -> None:
        """Launch on the stream. Nothing waits."""
        block = (self._block_threads, 1, 1)
        status = self._launch(self._function, grid_x, grid_y, 1, *block, 0, stream, None, self._options)
        if status:
            raise DriverError(f"launching {self._name} failed with status {status}: see the driver's list of errors")


def open_driver(api: Api) -> Driver:
    """The driver library of this process: the copy that torch has loaded already, where there is one."""
    for name in (*_loaded(api.libraries[0]), *api.libraries):
        try:
            return Driver(api, ctypes.CDLL(name))
        except OSError:
            continue
    raise DriverError(f"no driver library: tried {', '.join(api.libraries)}")


def _loaded(name: str) -> list[str]:
    # A ROCm build of torch brings its own libamdhip64: a second copy, of another version, would have no context.
    stem = name.split(".so")[0]
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = (line.split()[-1] for line in lines if "/" in line)
    return sorted({path for path in paths if Path(path).name.startswith(f"{stem}.so")})
