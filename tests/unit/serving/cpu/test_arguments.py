"""DSPARK's argument handling sees an accelerator for as long as it runs, and nothing else sees one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang.srt.arg_groups import speculative_hook

from sglang_dspark.serving.cpu.arguments import as_accelerator


@pytest.fixture
def original_view(monkeypatch):
    def view(arguments):
        return arguments

    monkeypatch.setattr(speculative_hook, "resolving_view", view)
    return view


def test_only_the_device_is_another(original_view) -> None:
    """Were other arguments hidden, DSPARK would resolve them from nothing."""
    arguments, seen = SimpleNamespace(device="cpu", tp_size=2), []

    def handle(server_args):
        view = speculative_hook.resolving_view(server_args)
        seen.append((server_args, view.device, view.tp_size))

    as_accelerator(handle)(arguments)
    assert seen == [(arguments, "xpu", 2)]
    assert arguments.device == "cpu"
    assert speculative_hook.resolving_view is original_view


def test_the_view_is_put_back_when_the_handling_fails(original_view) -> None:
    """Left in place, the rest of the server would run on an accelerator that is not there."""

    def handle(server_args):
        raise ValueError("some bad argument")

    with pytest.raises(ValueError, match="some bad argument"):
        as_accelerator(handle)(SimpleNamespace(device="cpu"))
    assert speculative_hook.resolving_view is original_view


def test_an_argument_that_is_not_there_is_still_missing(original_view) -> None:
    def handle(server_args):
        with pytest.raises(AttributeError):
            _ = speculative_hook.resolving_view(server_args).no_such_argument

    as_accelerator(handle)(SimpleNamespace(device="cpu"))
