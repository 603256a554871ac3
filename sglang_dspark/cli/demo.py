"""`sglang-dspark demo`: a small MiniMax-M3 with a DSpark draft, served on this machine's CPU.

The server is the real one, started as it would be typed by hand. The same prompt is answered with and without
speculation, and the two answers must be the same.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sglang_dspark.cli.server import CPU_ENGINE, Server
from sglang_dspark.demo import DemoPair, ensure

PROMPT = "def read_message(self, message, timeout=None):\n    if"
_NEW_TOKENS = 64


def add_parser(commands: Any) -> None:
    """Add the subcommand to the parser's `commands`."""
    parser = commands.add_parser(
        "demo",
        help="serve a small MiniMax-M3 and its draft on the CPU, with and without speculation",
        description=__doc__,
        epilog="example: sglang-dspark demo --prompt 'class Path:'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--path", action="store_true", help="only print the folder with target/ and draft/")
    parser.add_argument("--prompt", default=PROMPT, help="what to ask (default: %(default)r)")
    parser.add_argument("--port", type=int, help="port of the server (default: a free one)")
    parser.add_argument("--keep", action="store_true", help="leave the speculative server running until Ctrl-C")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; 0 when both servers answered the same."""
    pair = ensure()
    if arguments.path:
        print(pair.target.parent)
        return 0
    logs = Path(tempfile.mkdtemp(prefix="sglang-dspark-demo-"))
    print(f"The demo pair is {pair.target.parent}; the servers' logs go to {logs}.")
    with _start("without speculation", _target_arguments(pair), logs / "plain.log") as server:
        plain = _ask(server, arguments.prompt)
    with _start("with DSpark", _dspark_arguments(pair), logs / "dspark.log", arguments.port) as server:
        fast = _ask(server, arguments.prompt)
        meta = fast["meta_info"]
        print(
            f"  accepted length {meta['spec_accept_length']:.2f}: tokens a verify step, its bonus token included "
            f"({meta['completion_tokens']} tokens in {meta['spec_verify_ct']} steps)"
        )
        if fast["output_ids"] != plain["output_ids"]:
            print("\nFAILED: the answers with and without speculation differ.", file=sys.stderr)
            return 1
        print("\nOK: the same answer with and without speculation.")
        if arguments.keep:
            print(f"Still serving at http://127.0.0.1:{server.port}; end it with Ctrl-C.", flush=True)
            return server.wait()
    return 0


def _target_arguments(pair: DemoPair) -> list[str]:
    # In float32 the answers are equal to the last token; bf16 may break a tie the other way.
    return ["--model-path", str(pair.target), "--device", "cpu", "--dtype", "float32", "--max-total-tokens", "20000"]


def _dspark_arguments(pair: DemoPair) -> list[str]:
    draft = ["--speculative-algorithm", "dspark", "--speculative-draft-model-path", str(pair.draft)]
    return _target_arguments(pair) + draft


def _start(what: str, arguments: list[str], log: Path, port: int | None = None) -> Server:
    server = Server(arguments, log, environment=CPU_ENGINE, port=port, on_wait=_show_wait)
    print(f"\nServing {what}:\n  {server.command}", flush=True)
    return server


def _show_wait(seconds: float) -> None:
    if sys.stdout.isatty():
        print(f"\r  starting, {seconds:.0f} s ", end="", flush=True)


def _ask(server: Server, prompt: str) -> dict[str, Any]:
    body = {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": _NEW_TOKENS}}
    started = time.monotonic()
    answer: dict[str, Any] = server.post("/generate", body)
    end = "\r" if sys.stdout.isatty() else ""
    print(f"{end}  prompt  {prompt!r}\n  answer  {answer['text']!r}  ({time.monotonic() - started:.1f} s)", flush=True)
    return answer
