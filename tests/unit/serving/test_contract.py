"""SGLang has no stable plugin interface, and it swallows what a plugin raises. So a changed host must be noticed before
anything is registered, and the one message has to say which symbol moved, in which version, and what to do."""

from __future__ import annotations

import ast
import os
import shutil
from pathlib import Path

import pytest
from sglang.srt.plugins.hook_registry import HookRegistry
from transformers import AutoConfig

from sglang_dspark.serving import contract, plugin
from sglang_dspark.serving.contract import CPU_SYMBOLS, HOST_SYMBOLS, ContractMismatch, HostSymbol, mismatches

INSTALLED = contract._installed_root()
ALL = HOST_SYMBOLS + CPU_SYMBOLS
HANDLE = "sglang.srt.arg_groups.speculative_hook:_handle_dspark"
WORKER = "sglang.srt.speculative.dspark_components.dspark_worker_v2:DSparkWorkerV2._forward_decode"


def file_of(module: str) -> Path:
    path = Path(*module.split(".")[1:])
    return path / "__init__.py" if (INSTALLED / path).is_dir() else path.with_suffix(".py")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registering sets variables: they end with the test."""
    for name in ("SGLANG_OPT_USE_BF16_ROUTER_GEMM", "TORCHDYNAMO_DISABLE", "SGLANG_EXTERNAL_MODEL_PACKAGE"):
        monkeypatch.setenv(name, os.environ.get(name, ""))


def copied(module: str, root: Path) -> Path:
    path = root / file_of(module)
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(INSTALLED / file_of(module), path)
    return path


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A copy of the SGLang files that the contract looks into, to be changed."""
    root = tmp_path / "sglang"
    for module in {symbol.path.split(":")[0] for symbol in ALL}:
        copied(module, root)
    return root


def change(root: Path, module: str, old: str, new: str) -> None:
    path = root / file_of(module)
    text = path.read_text()
    assert old in text, f"{module} has no {old!r} to change"
    path.write_text(text.replace(old, new))


def test_the_installed_sglang_is_as_expected() -> None:
    assert mismatches(ALL) == []
    contract.check(cpu_engine=True)


def test_the_installed_version_is_the_one_the_contract_was_written_for() -> None:
    """Otherwise every test here is a test of another SGLang."""
    assert contract.installed_version() == contract.SGLANG_VERSION


def test_the_copy_is_as_expected(host: Path) -> None:
    """The changes below are all that tells the changed hosts from this one."""
    assert mismatches(ALL, host) == []


def test_every_missing_module_is_reported(tmp_path: Path) -> None:
    """A symbol whose look-up always succeeds guards nothing."""
    expected = [f"{s.path}: no module {s.path.split(':')[0]} ({s.why})" for s in ALL]
    assert mismatches(ALL, tmp_path) == expected


@pytest.mark.parametrize("symbol", ALL, ids=lambda symbol: symbol.path.split(":")[1])
def test_every_symbol_is_missed_when_it_is_renamed(symbol: HostSymbol, tmp_path: Path) -> None:
    """The look-up must not be satisfied by the module alone, or by another class's member of the same name."""
    module, _, name = symbol.path.partition(":")
    path = copied(module, tmp_path)
    node, last = contract._find(ast.parse(path.read_text()), name.split(".")), name.split(".")[-1]
    lines = path.read_text().splitlines()
    # An import may stretch over several lines.
    line = next(i for i in range(node.lineno - 1, node.end_lineno) if last in lines[i])
    lines[line] = lines[line].replace(last, f"{last}_renamed")
    path.write_text("\n".join(lines))
    assert mismatches([symbol], tmp_path) == [f"{symbol.path}: not found ({symbol.why})"]


def test_a_new_parameter_of_an_overridden_function_is_a_mismatch(host: Path) -> None:
    """Our override would not take it: a TypeError at the first decode step."""
    change(host, WORKER.split(":")[0], "coordination_plan", "coordination_plans")
    (problem,) = mismatches(ALL, host)
    assert problem.startswith(WORKER)
    assert "missing ['coordination_plan'], new ['coordination_plans']" in problem


def test_a_new_parameter_of_a_called_function_is_fine(host: Path) -> None:
    """A check that is too strict would refuse every patch release."""
    path = "sglang.srt.plugins.hook_registry"
    change(host, path, "        hook: Callable,\n", "        hook: Callable,\n        priority: int = 0,\n")
    assert mismatches(ALL, host) == []


def test_a_function_that_became_something_else(host: Path) -> None:
    module = HANDLE.split(":")[0]
    change(host, module, "def _handle_dspark(server_args: ServerArgs) -> None:", "class _handle_dspark:")
    (problem,) = mismatches(ALL, host)
    assert "asked for a function" in problem


def test_every_change_is_listed_with_the_version_and_what_to_do(host: Path, monkeypatch) -> None:
    """One message for all of them: whoever reads a log of thousands of lines sees one of ours."""
    change(host, HANDLE.split(":")[0], "def _handle_dspark(server_args", "def _handle_dspark(arguments")
    change(host, WORKER.split(":")[0], "def _forward_decode(", "def _decode(")
    monkeypatch.setattr(contract, "_installed_root", lambda: host)
    monkeypatch.setattr(contract, "installed_version", lambda: "0.6.1")
    with pytest.raises(ContractMismatch) as refusal:
        contract.check(cpu_engine=False)
    message = str(refusal.value)
    assert HANDLE in message and WORKER in message
    assert "SGLang 0.6.1 differs" in message and "registered nothing" in message
    assert f"Install sglang=={contract.SGLANG_VERSION}, or an sglang-dspark made for your version." in message


def test_the_cpu_engine_s_symbols_are_checked_on_a_cpu_alone(host: Path, monkeypatch) -> None:
    """A GPU server must not be refused for a CPU function that moved."""
    module = "sglang.srt.layers.moe.fused_moe_native"
    change(host, module, "def moe_forward_native(", "def moe_forward(")
    monkeypatch.setattr(contract, "_installed_root", lambda: host)
    contract.check(cpu_engine=False)
    with pytest.raises(ContractMismatch, match="moe_forward_native"):
        contract.check(cpu_engine=True)


def test_no_sglang_at_all(monkeypatch) -> None:
    monkeypatch.setattr(contract, "_installed_root", lambda: None)
    with pytest.raises(ContractMismatch, match="the package sglang is not installed"):
        contract.check(cpu_engine=False)


@pytest.mark.parametrize("on_cpu", ["1", "0"])
def test_register_registers_nothing_with_a_changed_host(on_cpu: str, host: Path, monkeypatch) -> None:
    """Half a registration is the worst outcome: our worker with SGLang's model, or a hook on a function that moved."""
    change(host, HANDLE.split(":")[0], "def _handle_dspark(", "def _resolve_dspark(")
    monkeypatch.setattr(contract, "_installed_root", lambda: host)
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", on_cpu)
    monkeypatch.delenv("SGLANG_EXTERNAL_MODEL_PACKAGE", raising=False)
    registered = []
    monkeypatch.setattr(AutoConfig, "register", lambda *args, **_: registered.append(args))
    monkeypatch.setattr(plugin, "_register_models", lambda: registered.append("models"))
    hooks = {target: list(found) for target, found in HookRegistry._hooks.items()}
    variables = dict(os.environ)
    with pytest.raises(ContractMismatch):
        plugin.register()
    assert {target: list(found) for target, found in HookRegistry._hooks.items()} == hooks
    assert dict(os.environ) == variables
    assert registered == []


@pytest.mark.parametrize("on_cpu", [True, False], ids=["cpu", "gpu"])
def test_register_registers_what_the_process_needs(on_cpu: bool, monkeypatch) -> None:
    """The counterpart of the test above: with the right host the hooks are there, the CPU engine's on a CPU alone."""
    hooks: list[str] = []
    monkeypatch.setattr(HookRegistry, "register", lambda target, hook, kind: hooks.append(target))
    monkeypatch.setattr(plugin, "_register_models", lambda: hooks.append("models"))
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1" if on_cpu else "0")
    plugin.register()
    everywhere = {
        "models",
        "sglang.srt.arg_groups.speculative_hook.handle_speculative_decoding",
        "sglang.srt.arg_groups.speculative_hook._handle_dspark",
        "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker",
    }
    cpu_alone = {
        "sglang.srt.layers.attention.attention_registry.attn_backend_wrapper",
        "sglang.srt.layers.moe.fused_moe_native.moe_forward_native",
        "sglang.kernels.ops.speculative.reject_sampling.chain_speculative_sampling_triton",
    }
    assert everywhere <= set(hooks)
    assert cpu_alone & set(hooks) == (cpu_alone if on_cpu else set())


def test_every_hook_target_is_in_the_contract(monkeypatch) -> None:
    """SGLang only logs a hook whose target is gone, so each target has to be a checked symbol."""
    targets: list[str] = []
    monkeypatch.setattr(HookRegistry, "register", lambda target, hook, kind: targets.append(target))
    monkeypatch.setattr(plugin, "_register_models", lambda: None)
    plugin.register()
    checked = {symbol.path.replace(":", ".") for symbol in ALL}
    assert targets and set(targets) <= checked
