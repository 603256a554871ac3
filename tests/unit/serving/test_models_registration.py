"""How our model classes get in front of SGLang's, whatever has been imported or asked for before."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from sglang_dspark.serving import plugin

VARIABLE, OURS = "SGLANG_EXTERNAL_MODEL_PACKAGE", "sglang_dspark.models"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch):
    """A double of SGLang's registry module, as it is once it was imported."""
    module = ModuleType("sglang.srt.models.registry")
    module.calls = []
    module.ModelRegistry = SimpleNamespace(
        models={}, register=lambda package, overwrite, strict: module.calls.append((package, overwrite, strict))
    )
    module.import_model_classes = lambda package, strict: {f"{package} {strict}": "class"}
    monkeypatch.setitem(sys.modules, "sglang.srt.models.registry", module)
    return module


@pytest.mark.parametrize("before", [None, "", OURS])
def test_before_the_registry_is_built_the_variable_does_it(monkeypatch, before: str | None) -> None:
    """It reaches child processes too; building the registry here would import every model of SGLang."""
    monkeypatch.delitem(sys.modules, "sglang.srt.models.registry", raising=False)
    monkeypatch.setenv(VARIABLE, before or "")
    if before is None:
        monkeypatch.delenv(VARIABLE)
    plugin._register_models()
    assert os.environ[VARIABLE] == OURS
    assert "sglang.srt.models.registry" not in sys.modules


def test_behind_it_our_classes_are_registered_over_sglang_s(monkeypatch, registry) -> None:
    """Without overwrite SGLang keeps its own class; without strict an import error of ours is only a warning."""
    monkeypatch.setenv(VARIABLE, "")
    plugin._register_models()
    assert registry.calls == [(OURS, True, True)]


def test_a_package_that_the_user_asked_for_stays(monkeypatch, registry) -> None:
    """Both: theirs by the variable, ours by the registry."""
    monkeypatch.setenv(VARIABLE, "their.models")
    plugin._register_models()
    assert os.environ[VARIABLE] == "their.models"
    assert registry.calls == [(OURS, True, True)]


def test_in_a_child_process_our_import_errors_are_errors(monkeypatch, registry) -> None:
    """The registry that was built with the variable skips a module that fails to import."""
    monkeypatch.setenv(VARIABLE, OURS)
    plugin._register_models()
    assert registry.ModelRegistry.models == {f"{OURS} True": "class"}
