"""SGLang's DSPARK argument handling on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class _SeenAsAccelerator:
    """A view of the server arguments whose device is one that DSPARK accepts; all else is the real view's."""

    def __init__(self, view: Any) -> None:
        self._view = view

    def __getattr__(self, name: str) -> Any:
        return "xpu" if name == "device" else getattr(self._view, name)


def as_accelerator(handle_dspark: Callable[[Any], None]) -> Callable[[Any], None]:
    """`_handle_dspark` without its refusal of the CPU, which is its only use of the device's name there."""

    def handle(server_args: Any) -> None:
        from sglang.srt.arg_groups import speculative_hook

        view = speculative_hook.resolving_view
        speculative_hook.resolving_view = lambda arguments: _SeenAsAccelerator(view(arguments))
        try:
            handle_dspark(server_args)
        finally:
            speculative_hook.resolving_view = view

    return handle
