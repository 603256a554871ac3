"""Run as a process of its own: loads SGLang's plugins as every SGLang process does, and says what came of it.

SGLang logs a plugin's exceptions and goes on, so they are taken from its logger. The answer is one line of JSON behind
`MARK`; SGLang and its packages print on standard output too.
"""

from __future__ import annotations

import json
import logging
from typing import Any

MARK = "sglang-dspark-registration: "
PACKAGE = "sglang_dspark"
DRAFT_CLASS = "DSparkMiniMaxDraftModel"


class _Errors(logging.Handler):
    """Keeps what SGLang's plugin framework, or its model registry, logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message, and the exception's own one."""
        error = record.exc_info[1] if record.exc_info else None
        reason = f": {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}" if error else ""
        self.lines.append(record.getMessage() + reason)


def answer() -> dict[str, Any]:
    """What SGLang registered of ours."""
    errors = _Errors()
    logging.getLogger("sglang").addHandler(errors)
    from sglang.srt.plugins import load_plugins
    from sglang.srt.plugins.hook_registry import HookRegistry

    load_plugins()
    hooks = {
        target: target in HookRegistry._patched
        for target, registered in HookRegistry._hooks.items()
        if any(hook.__module__.split(".")[0] == PACKAGE for _, hook, _ in registered)
    }
    found: dict[str, Any] = {"hooks": hooks, "errors": errors.lines, "draft_class": None, "top_k_renorm": None}
    if hooks:
        from sglang.kernels.ops.sampling import renorm
        from sglang.srt.models.registry import ModelRegistry

        model_class, _ = ModelRegistry.resolve_model_cls([DRAFT_CLASS])
        found["draft_class"] = f"{model_class.__module__}.{model_class.__name__}"
        found["top_k_renorm"] = renorm.top_k_renorm_prob is not None
    return found


if __name__ == "__main__":
    print(MARK + json.dumps(answer()), flush=True)
