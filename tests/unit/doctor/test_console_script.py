"""`sglang-dspark doctor` as a shell runs it: on a healthy machine, and on broken ones, each with its own line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_dspark import cli
from tests.unit.checkpoints.drafts import released
from tests.unit.checkpoints.folders import save_draft, save_target

SCRIPT = Path(sys.executable).with_name("sglang-dspark")
# What SGLang's plugin framework does with a plugin that raises, in a package of another version.
OTHER_SGLANG = {
    "srt/plugins/__init__.py": """
import logging
from importlib.metadata import entry_points
def load_plugins():
    for point in entry_points(group="sglang.srt.plugins"):
        try:
            point.load()()
        except Exception:
            logging.getLogger(__name__).exception("Failed to execute general plugin: %s", point.name)
""",
    "srt/plugins/hook_registry.py": "class HookRegistry:\n    _hooks, _patched = {}, set()\n",
    "srt/__init__.py": "",
    "__init__.py": "",
}


def doctor(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", **variables}
    command = [str(SCRIPT), "doctor", *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)


def findings(run: subprocess.CompletedProcess[str], level: str) -> dict[str, dict[str, Any]]:
    """Those of a level by subject, from a --json run."""
    return {f["subject"]: f for f in json.loads(run.stdout)["findings"] if f["level"] == level}


@pytest.mark.slow
def test_a_healthy_machine() -> None:
    """The fresh process is a real one: its hooks and its model class are SGLang's answer, not ours."""
    run = doctor("--json")
    assert run.returncode == 0, run.stdout + run.stderr
    assert findings(run, "problem") == {}
    fine = findings(run, "ok")
    assert fine["model class"]["found"].endswith(" is sglang_dspark.models.minimax_m3_dspark.DSparkMiniMaxDraftModel")
    applied, _, registered, *_ = fine["hooks"]["found"].split()
    assert applied == registered and int(applied) >= 4
    assert "fresh process" in run.stderr, "ten seconds without a word"


@pytest.mark.slow
def test_a_plugin_that_is_left_out() -> None:
    """SGLang says so on its info level alone, and serves with its own worker."""
    run = doctor("--json", SGLANG_PLUGINS="other")
    assert run.returncode == 1
    wrong = findings(run, "problem")
    assert wrong["SGLANG_PLUGINS"]["remedy"] == "add dspark to it, or unset it"
    assert wrong["hooks"]["found"] == "no hook of ours"
    assert wrong["model class"]["found"] == "SGLang's own"


def test_another_sglang(tmp_path: Path) -> None:
    """Symbols that moved are listed one by one, and the error that SGLang swallows is shown."""
    for name, text in OTHER_SGLANG.items():
        path = tmp_path / "sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    metadata = tmp_path / "sglang-0.6.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.6.1\n")
    run = doctor(PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
    assert run.returncode == 1
    assert "version" in run.stdout and "asked for 0.5.23, found 0.6.1; install sglang==0.5.23" in run.stdout
    assert "sglang.srt.speculative.spec_info:SpeculativeAlgorithm.create_worker: no module" in run.stdout
    (log,) = (line for line in run.stdout.splitlines() if "SGLang's log" in line)
    assert log.startswith("  problem") and "Failed to execute general plugin: dspark: ContractMismatch" in log


def test_no_compiler() -> None:
    """A server would fall back to many small launches and say so in one long line of its log."""
    run = doctor("--quick", "--json", PATH="", CXX="")
    assert run.returncode == 1
    wrong = findings(run, "problem")
    assert sorted(wrong) == ["context_kv_writer", "qk_norm_rope_insert"]
    for finding in wrong.values():
        assert "no host C++ compiler: tried c++, g++" in finding["found"] and "install g++" in finding["found"]
    assert findings(run, "warning")["qk_norm_rope"]["found"].startswith("torch (PyTorch, many launches) for ")


def test_a_pair_that_fits(tmp_path: Path) -> None:
    draft, target = save_draft(tmp_path / "draft", released()), save_target(tmp_path / "target")
    run = doctor("--quick", "--json", "--model-path", target, "--draft-path", draft)
    assert run.returncode == 0 and findings(run, "problem") == {}
    assert "draft KV" in findings(run, "ok") and "num_target_layers" in findings(run, "ok")


def test_a_draft_of_another_target(tmp_path: Path) -> None:
    """The lint's problems are the doctor's, and both reports hold the same findings."""
    draft = save_draft(tmp_path / "draft", released())
    target = save_target(tmp_path / "target", num_hidden_layers=4)
    arguments = ("--quick", "--model-path", target, "--draft-path", draft)
    as_json, as_text = doctor(*arguments, "--json"), doctor(*arguments)
    assert (as_json.returncode, as_text.returncode) == (1, 1)
    report = json.loads(as_json.stdout)
    shown = [line.split(maxsplit=1)[0] for line in as_text.stdout.splitlines() if line.startswith("  ")]
    assert shown == [finding["level"] for finding in report["findings"]]
    for finding in report["findings"]:
        assert f"  {finding['level']:<8} {finding['subject']}" in as_text.stdout
        assert finding["found"] in as_text.stdout and finding["remedy"] in as_text.stdout
    assert as_text.stdout.splitlines()[-1] == f"{report['problems']} problem(s), {report['warnings']} warning(s)"
    assert "num_target_layers" in findings(as_json, "problem")


@pytest.mark.parametrize("option", ["--model-path", "--draft-path"])
def test_half_a_pair(option: str, tmp_path: Path, capsys) -> None:
    """Checking nothing and saying that all is well would be worse than an error."""
    with pytest.raises(SystemExit) as end:
        cli.main(["doctor", "--quick", option, str(tmp_path)])
    assert end.value.code == 2 and "go together" in capsys.readouterr().err
