"""A fake AITER in place of the real one, and an AMD platform whose tensors are on the CPU."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from sglang_dspark import platforms
from sglang_dspark.ops.aiter import signatures

from . import fake_aiter


@pytest.fixture
def amd():
    """gfx942, with its device type changed: the fake works on CPU tensors."""
    return replace(platforms.describe("amd", "gfx942"), device_type="cpu")


@pytest.fixture
def nothing_imported(monkeypatch):
    """No AITER, whatever is installed, and nothing kept of it."""
    for name in [name for name in sys.modules if name.split(".")[0] == "aiter"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiter", None)
    signatures._import.cache_clear()
    yield
    signatures._import.cache_clear()


@pytest.fixture
def install(nothing_imported, monkeypatch):
    """Put the fake in place; keywords replace functions, or leave them out (None)."""

    def put(**replaced):
        signatures._import.cache_clear()
        fake_aiter.CALLS.clear()
        for name, module in fake_aiter.modules(**replaced).items():
            monkeypatch.setitem(sys.modules, name, module)

    return put
