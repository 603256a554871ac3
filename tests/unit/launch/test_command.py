"""The printed command is the one that is run, and means the same when it is typed."""

from __future__ import annotations

import shlex
import sys

from sglang_dspark.launch.arguments import Given
from sglang_dspark.launch.command import Command, compose
from sglang_dspark.launch.recommendations import recommend
from tests.unit.launch.machines import MI300X

# Values that a careless join would break, or a parser take for its own.
WORDS = [
    "--model-path", "/a b/c", "--json-model-override-args", '{"a": -1}', "--max-total-tokens", "-1", "--port=3",
    "--chat-template", "it's", "--", "--tp", "2",
]  # fmt: skip


def test_the_user_s_words_come_first_and_untouched() -> None:
    command = compose(Given(WORDS), recommend(MI300X, Given(WORDS), {}), {"HOME": "/h"})
    assert list(command.arguments[: len(WORDS)]) == WORDS
    assert command.environment == {"HOME": "/h", "SGLANG_USE_AITER": "1"}
    assert command.words[:3] == [sys.executable, "-m", "sglang.launch_server"]


def test_what_is_printed_is_what_is_run() -> None:
    command = Command(tuple(WORDS), {"HOME": "/h", "SGLANG_USE_AITER": "1", "SGLANG_X": "a b"})
    typed = shlex.split(command.typed())
    assert typed[:2] == ["SGLANG_USE_AITER=1", "SGLANG_X=a b"], (
        "variables that were set before count in a new shell too"
    )
    assert typed[3:] == command.words[1:]


def test_python_is_named_so_that_it_is_this_one(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert shlex.split(Command((), {}).typed())[0] == sys.executable
