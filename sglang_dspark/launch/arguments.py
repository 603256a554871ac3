"""launch_server's arguments as the user gave them: never changed here, only read, so that nothing of his is overridden.

SGLang 0.5.23 parses with argparse, which takes every unambiguous beginning of a name (`--tp` is `--tp-size`), and puts
the keys of a `--config` file in front of the command line (`sglang.srt.utils.server_args_config_parser`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class BadArguments(ValueError):
    """Arguments that launch_server would not take either, or that say something other than a DSPARK server."""


@dataclass(frozen=True)
class Option:
    """One option of launch_server and its other spellings."""

    name: str
    aliases: tuple[str, ...] = ()

    def is_spelt(self, written: str) -> bool:
        """Whether argparse would take `written` for this option; beginnings count, too short ones included."""
        return len(written) > 2 and any(name.startswith(written) for name in (self.name, *self.aliases))


MODEL = Option("--model-path", ("--model",))
ALGORITHM = Option("--speculative-algorithm")
DRAFT = Option("--speculative-draft-model-path", ("--speculative-draft-model",))
TENSOR_PARALLEL = Option("--tp-size", ("--tensor-parallel-size",))
DEVICE = Option("--device")
ATTENTION_BACKEND = Option("--attention-backend")
DRAFT_ATTENTION_BACKEND = Option("--speculative-draft-attention-backend")
PAGE_SIZE = Option("--page-size")
KV_DTYPE = Option("--kv-cache-dtype")
STATIC_MEMORY = Option("--mem-fraction-static")
PREFILL_CHUNK = Option("--chunked-prefill-size")
RUNNING_REQUESTS = Option("--max-running-requests")
POOL_TOKENS = Option("--max-total-tokens")
WATCHDOG = Option("--watchdog-timeout")
OPTIONS = (
    MODEL,
    ALGORITHM,
    DRAFT,
    TENSOR_PARALLEL,
    DEVICE,
    ATTENTION_BACKEND,
    DRAFT_ATTENTION_BACKEND,
    PAGE_SIZE,
    KV_DTYPE,
    STATIC_MEMORY,
    PREFILL_CHUNK,
    RUNNING_REQUESTS,
    POOL_TOKENS,
    WATCHDOG,
)
_CONFIG = "--config"


class Given:
    """The arguments, and the options found among them."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """Read the arguments, and the file that `--config` names.

        Raises:
            BadArguments: the file is missing or no YAML table.
        """
        self.arguments = list(arguments)
        self._values = _from_config(self.arguments)
        for position, argument in enumerate(self.arguments):
            written, separator, value = argument.partition("=")
            if not written.startswith("--"):
                continue
            if not separator:
                value = self.arguments[position + 1] if position + 1 < len(self.arguments) else ""
            for option in OPTIONS:
                if option.is_spelt(written):
                    self._values[option.name] = value

    def value(self, option: Option) -> str | None:
        """What was given for an option, the last one where it was given twice; None where it was not."""
        return self._values.get(option.name)


def _from_config(arguments: Sequence[str]) -> dict[str, str]:
    if _CONFIG not in arguments:
        return {}
    position = arguments.index(_CONFIG) + 1
    path = Path(arguments[position]) if position < len(arguments) else None
    if path is None or not path.is_file():
        raise BadArguments(f"asked for the file after {_CONFIG}, found {path or 'nothing'}; check the path")
    import yaml  # SGLang reads the file with it, so it is there wherever the server is.

    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadArguments(f"asked for YAML in {path}, found none ({str(error).splitlines()[0]})") from error
    if not isinstance(table, dict):
        raise BadArguments(f"asked for a table of options in {path}, found {type(table).__name__}")
    spelt = {"--" + str(key).replace("_", "-"): str(value) for key, value in table.items()}
    return {option.name: value for key, value in spelt.items() for option in OPTIONS if option.is_spelt(key)}
