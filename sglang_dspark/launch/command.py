"""The command that starts the server: what is run, and what is printed for people to copy."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sglang_dspark.launch.arguments import Given
from sglang_dspark.launch.recommendations import Advice, Standing

MODULE = "sglang.launch_server"
# Variables that were set before count as well: the printed line must mean the same in another shell.
_PREFIX = "SGLANG_"


@dataclass(frozen=True)
class Command:
    """`python -m sglang.launch_server ARGUMENTS` under an environment."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def words(self) -> list[str]:
        """Program and arguments, as `exec` takes them."""
        return [sys.executable, "-m", MODULE, *self.arguments]

    def typed(self) -> str:
        """The command as it would be typed, SGLang's variables in front."""
        variables = [f"{k}={shlex.quote(v)}" for k, v in sorted(self.environment.items()) if k.startswith(_PREFIX)]
        return " ".join([*variables, shlex.quote(_python()), "-m", MODULE, shlex.join(self.arguments)])


def compose(given: Given, advice: Iterable[Advice], environment: Mapping[str, str]) -> Command:
    """The user's arguments, untouched and in their order, and behind them what was added."""
    added = [item for item in advice if item.standing is Standing.ADDED and item.value is not None]
    arguments = [word for item in added if not item.is_variable for word in (item.name, str(item.value))]
    variables = {item.name: str(item.value) for item in added if item.is_variable}
    return Command((*given.arguments, *arguments), {**environment, **variables})


def _python() -> str:
    """`python` where that is this very interpreter, its path otherwise."""
    found = shutil.which("python")
    same = found is not None and Path(found).absolute() == Path(sys.executable).absolute()
    return "python" if same else sys.executable
