"""SGLang's own serving benchmark in a process that imports it once: one run a line of standard input.

`python -m sglang.benchmark.serving` spends seconds on its imports, and a benchmark calls it for every concurrency of
every server. This process calls its command line's own entry instead, with the arguments of each line, so that a run is
what typing the command would do. Its output goes to the log; the answers to the parent are lines of standard output.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import IO, Any

MODULE = "sglang.benchmark.serving"


def main(log: str) -> None:
    """Answer ``{"ready": true}`` once imported, then one ``{"error": null or text}`` for each line of arguments."""
    answers = os.fdopen(os.dup(1), "w")
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from sglang.benchmark import serving

    _answer(answers, {"ready": True})
    for line in sys.stdin:
        _answer(answers, {"error": _run(serving.cli_main, json.loads(line))})


def _run(entry: Any, arguments: list[str]) -> str | None:
    """What went wrong, None when nothing did."""
    print(f"\n$ python -m {MODULE} {' '.join(arguments)}", flush=True)
    sys.argv = [MODULE, *arguments]
    try:
        entry()
    except SystemExit as ended:
        return None if ended.code in (None, 0) else f"it ended with status {ended.code}"
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    finally:
        sys.stdout.flush()
    return None


def _answer(answers: IO[str], what: dict[str, Any]) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
