"""What the user gave is found however it was written: an option that is overlooked would be overridden."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from sglang_dspark.launch import arguments as options
from sglang_dspark.launch.arguments import OPTIONS, BadArguments, Given


@pytest.mark.parametrize(
    "written",
    [
        ["--tp-size", "4"],
        ["--tp", "4"],
        ["--tp=4"],
        ["--tensor-parallel-size=4"],
        ["--tensor-par", "4"],
        ["--trust-remote-code", "--tp", "4", "--port", "1"],
        ["--tp", "8", "--tp-size", "4"],
    ],
)
def test_every_spelling_of_an_option(written: list[str]) -> None:
    """argparse takes beginnings and `=`; of two, the last counts."""
    assert Given(written).value(options.TENSOR_PARALLEL) == "4"


def test_what_was_not_given() -> None:
    given = Given(["--model-path", "x", "--page-size", "64"])
    assert given.value(options.TENSOR_PARALLEL) is None and given.value(options.DRAFT) is None
    assert given.value(options.MODEL) == "x" and given.value(options.PAGE_SIZE) == "64"
    assert given.arguments == ["--model-path", "x", "--page-size", "64"]


def test_the_draft_s_attention_backend_is_not_the_target_s() -> None:
    given = Given(["--speculative-draft-attention-backend", "triton"])
    assert given.value(options.ATTENTION_BACKEND) is None and given.value(options.DRAFT) is None


def test_names_are_sglang_s_own() -> None:
    """An option that SGLang does not have would end the server, one that shares a beginning be taken for another."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    actions = [action for action in parser._actions if action.option_strings]
    for option in OPTIONS:
        (action,) = (action for action in actions if option.name in action.option_strings)
        assert set(action.option_strings) == {option.name, *option.aliases}
        others = [name for other in actions if other is not action for name in other.option_strings]
        # The draft's path is an exception that argparse makes too: an exact name is never a beginning.
        assert not [name for name in others if len(name) > 2 and option.is_spelt(name)]


def test_a_config_file(tmp_path: Path) -> None:
    """SGLang puts its keys in front of the command line, so that the command line wins."""
    path = tmp_path / "server.yaml"
    path.write_text("model_path: a\ntp: 2\nmem-fraction-static: 0.7\nother: 1\n")
    given = Given(["--config", str(path), "--model-path", "b"])
    assert given.value(options.MODEL) == "b" and given.value(options.TENSOR_PARALLEL) == "2"
    assert given.value(options.STATIC_MEMORY) == "0.7"


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [", "x"])
def test_a_config_file_that_is_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text(text)
    with pytest.raises(BadArguments, match="asked for .* in .*server.yaml, found"):
        Given(["--config", str(path)])


@pytest.mark.parametrize("arguments", [["--config"], ["--config", "/no/such.yaml"]])
def test_a_config_file_that_is_not_there(arguments: list[str]) -> None:
    with pytest.raises(BadArguments, match="check the path"):
        Given(arguments)
