"""Every command has a page of help that ends in an example; a command without one is guessed at."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import pytest

from sglang_dspark import cli


def parsers(monkeypatch: pytest.MonkeyPatch) -> dict[str, argparse.ArgumentParser]:
    """Every command's parser by its words, subcommands of subcommands too."""
    made: list[argparse.ArgumentParser] = []
    parse = argparse.ArgumentParser.parse_known_args

    def keep(self: argparse.ArgumentParser, *given, **named):
        made.append(self)
        return parse(self, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_known_args", keep)
        with pytest.raises(SystemExit):
            cli.main(["--version"])
    return dict(_below(made[0], ()))


def _below(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not actions:
        yield " ".join(words), parser
    for action in actions:
        for name, child in action.choices.items():
            yield from _below(child, (*words, name))


def test_every_command_s_help(monkeypatch: pytest.MonkeyPatch) -> None:
    found = parsers(monkeypatch)
    assert {"serve", "doctor", "demo", "convert", "train"} <= set(found)
    for words, parser in found.items():
        text = parser.format_help()
        assert re.search(rf"(?m)^ *(examples?: )?.*sglang-dspark {words}\b", text.split("example")[-1]), words
        assert "example" in text, f"sglang-dspark {words} --help has no example"
        undocumented = [action.dest for action in parser._actions if action.help is None]
        assert not undocumented, f"sglang-dspark {words}: {undocumented}"
