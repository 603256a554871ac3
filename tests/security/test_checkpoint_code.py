"""No code from a checkpoint is run unless trust_remote_code was given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .payloads import change_config, pair, read_everything

# What transformers would import from the checkpoint's folder.
AUTO_MAP = {
    "AutoConfig": "configuration_hostile.HostileConfig",
    "AutoModel": "modeling_hostile.HostileModel",
    "AutoModelForCausalLM": "modeling_hostile.HostileModel",
    "AutoTokenizer": ["tokenization_hostile.HostileTokenizer", None],
}
CODE = """
from pathlib import Path
from transformers import PretrainedConfig
Path({marker!r}).write_text("ran")
class HostileConfig(PretrainedConfig):
    model_type = "hostile"
class HostileModel: pass
class HostileTokenizer: pass
"""
READ = """
import sys
from sglang_dspark.serving import hf_config
from sglang_dspark.serving.cpu import standins
standins.install()
hf_config.register()
from pathlib import Path
from sglang.srt.utils.hf_transformers_utils import get_config
for draft, trust in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        found = get_config(draft, trust_remote_code=trust == "yes")
    except ValueError as error:
        found = error
    print(type(found).__name__, Path(draft).with_name("marker").exists())
"""


def hostile_pair(folder: Path, **changes: Any) -> tuple[Path, Path, Path]:
    """A draft with code, its target, and what the code writes."""
    marker = folder / "marker"
    draft, target = pair(folder)
    for name in ("configuration_hostile", "modeling_hostile", "tokenization_hostile"):
        (draft / f"{name}.py").write_text(CODE.format(marker=str(marker)))
    (draft / "__init__.py").write_text(CODE.format(marker=str(marker)))
    change_config(draft, auto_map=AUTO_MAP, **changes)
    return draft, target, marker


def test_auto_map_is_ignored(tmp_path: Path) -> None:
    """A draft often carries its target's: it is a good draft, whose code nobody needs."""
    draft, target, marker = hostile_pair(tmp_path)
    assert read_everything(draft, target, tmp_path / "converted") == []
    assert not marker.exists()


def test_an_unknown_model_type_is_refused_and_its_code_not_asked_for(tmp_path: Path) -> None:
    """transformers would say that the code must be run to read the config."""
    draft, target, marker = hostile_pair(tmp_path, model_type="hostile")
    refusals = read_everything(draft, target, tmp_path / "converted")
    assert any("cannot be read by SGLang" in refusal for refusal in refusals)
    assert not marker.exists()


@pytest.mark.slow
def test_sglang_runs_it_only_where_it_was_trusted_and_needed(tmp_path: Path) -> None:
    """The server's own reader, in a process of its own. The last read shows that the payload works where it may."""
    known = hostile_pair(tmp_path / "known")
    unknown = hostile_pair(tmp_path / "unknown", model_type="hostile")
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    reads = [str(known[0]), "no", str(known[0]), "yes", str(unknown[0]), "no", str(unknown[0]), "yes"]
    command = [sys.executable, "-W", "ignore", "-c", READ, *reads]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [
        # Our class is registered for its model type, and comes first even where code is trusted.
        *("MiniMaxM3Config", "False", "MiniMaxM3Config", "False"),
        *("ValueError", "False", "HostileConfig", "True"),
    ]
