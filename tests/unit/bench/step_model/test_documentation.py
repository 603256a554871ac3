"""The page shows what the command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from sglang_dspark import cli

PAGE = Path(__file__).parents[4] / "docs" / "step-time-model.md"
# What the command was given, and the table below it.
SHOWN = re.findall(r"<!-- model:(.*?)-->\n((?:\|.*\n)+)", PAGE.read_text())


@pytest.mark.parametrize(("arguments", "table"), SHOWN)
def test_the_tables_are_the_command_s(arguments, table, capsys):
    assert cli.main(["bench", "model", *shlex.split(arguments)]) == 0
    assert table in capsys.readouterr().out


def test_there_are_tables():
    assert len(SHOWN) == 2 and (PAGE.parent / "step-time-model.png").exists()


@pytest.mark.parametrize(
    ("arguments", "shown", "figure"),
    [
        ("--batch 1 --expert-overlap 0.5", "down to 1.65", "| 1.65 |"),
        ("--batch 1 --gamma 4", "needs 1.70 at batch 1", "| 1.70 | 1.70 |"),
        ("--batch 1 --draft-kv fp8 --eager-us 10", "it is 303 us", "| 303 | 43 |"),
    ],
)
def test_so_are_the_numbers_in_the_text(arguments, shown, figure, capsys):
    assert shown in PAGE.read_text()
    assert cli.main(["bench", "model", *shlex.split(arguments)]) == 0
    assert figure in capsys.readouterr().out
