"""A draft is checked before the server starts: one thing of a good demo pair is broken at a time, and the message says
what was asked, what was found and what to do."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PretrainedConfig

from sglang_dspark.checkpoints import CheckpointError, Layout, TargetFacts
from sglang_dspark.demo import DemoPair, DemoSpec, build
from sglang_dspark.serving import draft_check, limits, plugin
from sglang_dspark.serving.draft_check import check_draft, is_ours, target_facts

WEIGHTS = "model.safetensors"
LAYOUTS = ("automodel", "released")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DemoPair]:
    folder = tmp_path_factory.mktemp("pairs")
    return {layout: build(folder / layout, layout=layout, spec=DemoSpec.tiny()) for layout in LAYOUTS}


@pytest.fixture(params=LAYOUTS)
def pair(request: pytest.FixtureRequest, built: dict[str, DemoPair], tmp_path: Path) -> DemoPair:
    """A pair of each layout whose draft may be broken."""
    original = built[request.param]
    return DemoPair(original.target, Path(shutil.copytree(original.draft, tmp_path / "draft")))


def facts(pair: DemoPair) -> TargetFacts:
    return target_facts(PretrainedConfig(**json.loads((pair.target / "config.json").read_text())))


def change_tensors(draft: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(draft / WEIGHTS)
    change(tensors)
    save_file(tensors, draft / WEIGHTS, metadata={"format": "pt"})


def change_config(draft: Path, **changes: Any) -> None:
    raw = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(raw | changes))


def refusal(pair: DemoPair, target: TargetFacts | None = None, tp_size: int = 1) -> CheckpointError:
    with pytest.raises(CheckpointError) as error:
        check_draft(str(pair.draft), None, target or facts(pair), tp_size)
    assert str(pair.draft) in str(error.value)
    return error.value


def test_a_good_draft(pair: DemoPair) -> None:
    config = check_draft(str(pair.draft), None, facts(pair), 1)
    assert config.layout in Layout
    assert config.vocab_size == DemoSpec.tiny().vocab_size


def test_a_path_that_does_not_exist(pair: DemoPair, tmp_path: Path, monkeypatch) -> None:
    """SGLang only warns, goes on with a default block size, and fails much later in a child process."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CheckpointError) as error:
        check_draft("/does/not/exist", None, facts(pair), 1)
    (problem,) = error.value.problems
    assert "/does/not/exist" in str(error.value)
    assert "asked for a draft checkpoint" in problem and "no such folder" in problem and "check the path" in problem


def test_neither_layout(pair: DemoPair) -> None:
    change_config(pair.draft, architectures=["LlamaForCausalLM"])
    (problem,) = refusal(pair).problems
    assert "found architectures ['LlamaForCausalLM']" in problem
    assert "pass a draft in AutoModel's or the released layout" in problem


def test_the_target_given_as_its_own_draft(pair: DemoPair) -> None:
    """The likeliest slip of a command line."""
    error = refusal(DemoPair(pair.target, pair.target), facts(pair))
    assert "MiniMaxM3SparseForCausalLM" in str(error)


def test_config_is_missing(pair: DemoPair) -> None:
    """Fault 17. SGLang alone would go on with a block of 7."""
    (pair.draft / "config.json").unlink()
    assert "found no such file" in str(refusal(pair))


def test_weights_are_missing(pair: DemoPair) -> None:
    (pair.draft / WEIGHTS).unlink()
    assert "save the draft as safetensors" in str(refusal(pair))


def test_a_tensor_is_missing_another_is_unexpected_and_a_third_is_misshapen(pair: DemoPair) -> None:
    """All in one message."""
    changed = {}

    def change(tensors: dict[str, torch.Tensor]) -> None:
        names = sorted(name for name in tensors if name.endswith("fc.weight") or "hidden_norm" in name)
        changed["missing"], changed["misshapen"] = names
        del tensors[changed["missing"]]
        tensors[changed["misshapen"]] = torch.zeros(3)
        tensors["model.nobody.weight"] = torch.zeros(1)

    change_tensors(pair.draft, change)
    problems = refusal(pair).problems
    assert set(problems) == {
        f"tensor {changed['missing']}: missing",
        f"tensor {changed['misshapen']}: asked for shape [64], found [3]",
        "tensor model.nobody.weight: unexpected; no part of this draft has that name",
    }


def test_another_target(pair: DemoPair) -> None:
    target = dataclasses.replace(facts(pair), vocab_size=200064, num_layers=60)
    problems = refusal(pair, target).problems
    assert len(problems) == 2
    assert all("use the draft that belongs to this target" in problem for problem in problems)


def test_tensor_parallel_that_does_not_divide(pair: DemoPair) -> None:
    problems = refusal(pair, tp_size=3).problems
    assert any("tensor parallel 3 does not divide the draft's 4 attention heads" in problem for problem in problems)


def test_problems_of_the_config_and_of_the_files_come_together(pair: DemoPair) -> None:
    """One start of the server tells all."""
    change_tensors(pair.draft, lambda tensors: tensors.update(stray=torch.zeros(1)))
    error = refusal(pair, dataclasses.replace(facts(pair), hidden_size=6144), tp_size=3)
    for part in ("hidden_size: the target has 6144", "tensor parallel 3", "tensor stray: unexpected"):
        assert part in str(error)


@pytest.mark.parametrize(
    ("automodel_key", "released_key", "value", "named"),
    [
        ("markov_head_type", "dspark_markov_head_type", "lstm", "markov_head_type"),
        ("mask_token_id", "dspark_noise_token_id", 8, "mask_token_id"),
        ("block_size", "dspark_block_size", 0, "block_size"),
    ],
)
def test_a_bad_value(pair: DemoPair, automodel_key: str, released_key: str, value: Any, named: str) -> None:
    for key in (automodel_key, released_key):
        change_config(pair.draft, **{key: value})
    (problem,) = refusal(pair).problems
    assert problem.startswith(f"{named}: asked for")


def test_a_hub_name_that_has_no_config(pair: DemoPair, monkeypatch) -> None:
    """Fault 17.

    transformers gives an empty table for a repository without a config; read on, every key would be missing.
    """
    monkeypatch.setattr(draft_check.PretrainedConfig, "get_config_dict", lambda *args, **_: ({}, {}))
    with pytest.raises(CheckpointError, match="found no config.json there"):
        check_draft("someone/draft", None, facts(pair), 1)


def test_a_hub_draft_is_read_at_its_revision(pair: DemoPair, monkeypatch) -> None:
    """Its files are checked by the loader, once they are here."""
    raw, asked = json.loads((pair.draft / "config.json").read_text()), []
    monkeypatch.setattr(
        draft_check.PretrainedConfig,
        "get_config_dict",
        lambda path, revision, **_: asked.append((path, revision)) or (dict(raw), {}),
    )
    assert check_draft("someone/draft", "v2", facts(pair), 1).vocab_size == 8
    assert set(asked) == {("someone/draft", "v2")}


def test_whose_drafts_are_ours() -> None:
    """Another model's draft must not meet MiniMax-M3's checks."""
    assert is_ours(PretrainedConfig(architectures=["MiniMaxM3SparseForCausalLM"]))
    assert is_ours(PretrainedConfig(architectures=["MiniMaxM3SparseForConditionalGeneration"]))
    assert not is_ours(PretrainedConfig(architectures=["DeepseekV4ForCausalLM"]))
    assert not is_ours(PretrainedConfig())


def test_facts_of_a_vision_language_target() -> None:
    """The text model's sizes, not the top level's."""
    text = SimpleNamespace(num_hidden_layers=60, hidden_size=6144, vocab_size=200064)
    assert target_facts(SimpleNamespace(text_config=text, hidden_size=1)) == TargetFacts(60, 6144, 200064)


# --- the hooks -----------------------------------------------------------------------------------------------------


class Hooked:
    """The hook around SGLang's handling of the DSPARK arguments, with the parts of SGLang that it reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, architecture: str, **arguments: Any) -> None:
        from sglang.srt.arg_groups import overrides

        self.calls: list[str] = []
        self.declared: dict[str, Any] = {}
        defaults = {
            "speculative_algorithm": "dspark",
            "speculative_draft_model_path": "draft",
            "speculative_draft_model_revision": None,
            "tp_size": 1,
            "attn_dp_size": 1,
            "attn_cp_size": 1,
            "_speculative_draft_quantization_explicitly_set": False,
            "load_format": "auto",
            "speculative_draft_load_format": None,
        }
        self.arguments = SimpleNamespace(**defaults | arguments)
        config = PretrainedConfig(
            architectures=[architecture], num_hidden_layers=4, hidden_size=64, vocab_size=8, num_attention_heads=4
        )
        monkeypatch.setattr(overrides, "resolving_view", lambda server_args: self.arguments)
        model_config = SimpleNamespace(hf_config=config, dtype=torch.bfloat16)
        monkeypatch.setattr(overrides, "model_config_of", lambda server_args: model_config)
        monkeypatch.setattr(overrides, "declare_resolution", lambda args, source, **found: self.declared.update(found))
        monkeypatch.setattr(draft_check, "check_draft", lambda path, *_: self.calls.append(f"check {path}"))
        monkeypatch.setattr(limits, "check", lambda *_, **__: self.calls.append("limits"))
        monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "0")

    def run(self) -> None:
        """Both hooks, as SGLang nests them."""

        def handle_dspark(server_args: Any) -> None:
            self.calls.append("resolve")
            self.arguments.speculative_draft_model_path = self.arguments.speculative_draft_model_path or "found"

        def handle_speculative_decoding(server_args: Any) -> None:
            self.calls.append("open")
            plugin._around_handle_dspark(handle_dspark, server_args)

        plugin._around_handle_speculative_decoding(handle_speculative_decoding, self.arguments)


def test_a_named_draft_is_checked_before_sglang_opens_it(monkeypatch) -> None:
    """Faults 13 and 17. SGLang opens it twice: to tell another model's drafts apart, where a bad path ends in a stack
    of errors that names no draft, and for its block size, where a config it cannot read only costs a warning. The
    draft is not given the target's quantisation."""
    hooked = Hooked(monkeypatch, "MiniMaxM3SparseForCausalLM")
    hooked.run()
    assert hooked.calls == ["limits", "check draft", "open", "resolve"]
    assert hooked.declared["speculative_draft_model_quantization"] is None


def test_a_draft_that_sglang_finds_is_checked_then(monkeypatch) -> None:
    """A draft in the target's dspark/ folder is not named on the command line."""
    hooked = Hooked(monkeypatch, "MiniMaxM3SparseForCausalLM", speculative_draft_model_path=None)
    hooked.run()
    assert hooked.calls == ["limits", "open", "resolve", "check found"]


@pytest.mark.parametrize("algorithm", [None, "EAGLE", "DFLASH"])
def test_other_algorithms_drafts_are_not_checked(monkeypatch, algorithm: str | None) -> None:
    """An EAGLE draft of MiniMax-M3 is a good draft."""
    hooked = Hooked(monkeypatch, "MiniMaxM3SparseForCausalLM", speculative_algorithm=algorithm)
    plugin._around_handle_speculative_decoding(lambda server_args: hooked.calls.append("open"), hooked.arguments)
    assert hooked.calls == ["open"]


def test_a_quantisation_asked_for_is_kept(monkeypatch) -> None:
    """Fault 13. The target's --quantization is not the draft's; one that was asked for the draft is."""
    hooked = Hooked(monkeypatch, "MiniMaxM3SparseForCausalLM", _speculative_draft_quantization_explicitly_set=True)
    hooked.run()
    assert "speculative_draft_model_quantization" not in hooked.declared


@pytest.mark.parametrize(
    ("load_format", "of_the_draft", "declared"),
    [
        ("auto", None, "safetensors"),
        ("auto", "dummy", "dummy"),
        ("pt", "safetensors", "safetensors"),
        ("runai_streamer", None, "runai_streamer"),
        ("fastsafetensors", "auto", "safetensors"),
    ],
)
def test_a_draft_is_never_loaded_from_pickles(monkeypatch, load_format, of_the_draft, declared) -> None:
    """SGLang's "auto" goes on to *.bin and *.pt where it finds no safetensors, in a hub repository for one."""
    hooked = Hooked(
        monkeypatch,
        "MiniMaxM3SparseForCausalLM",
        load_format=load_format,
        speculative_draft_load_format=of_the_draft,
    )
    hooked.run()
    assert hooked.declared["speculative_draft_load_format"] == declared


@pytest.mark.parametrize("asked", [{"load_format": "pt"}, {"speculative_draft_load_format": "npcache"}])
def test_pickles_that_are_asked_for_are_refused(monkeypatch, asked: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="from safetensors alone, never from pickles; pass --speculative-draft-load"):
        Hooked(monkeypatch, "MiniMaxM3SparseForCausalLM", **asked).run()


def test_other_targets_are_left_to_sglang(monkeypatch) -> None:
    hooked = Hooked(monkeypatch, "DeepseekV4ForCausalLM")
    hooked.run()
    assert hooked.calls == ["open", "resolve"] and hooked.declared == {}


@pytest.mark.parametrize("is_dspark", [True, False])
@pytest.mark.parametrize("on_cpu", ["1", "0"])
def test_the_worker_is_ours_for_dspark_alone(monkeypatch, is_dspark: bool, on_cpu: str) -> None:
    """Another algorithm's worker in the place of ours, or the reverse, fails deep inside the first batch."""
    from sglang_dspark.serving.cpu.worker import CpuDSparkWorker
    from sglang_dspark.serving.worker import DSparkWorker

    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", on_cpu)
    algorithm = SimpleNamespace(is_dspark=lambda: is_dspark)
    worker = plugin._around_create_worker(lambda algorithm, server_args: "builtin", algorithm, None)
    assert worker is (CpuDSparkWorker if on_cpu == "1" else DSparkWorker) if is_dspark else worker == "builtin"


@pytest.mark.e2e
def test_the_server_refuses_a_path_that_does_not_exist(built: dict[str, DemoPair]) -> None:
    """Fault 17.

    The whole way: the plugin is found, its hook takes, and the command ends with our message instead of serving.
    """
    command = [sys.executable, "-m", "sglang.launch_server", "--device", "cpu", "--speculative-algorithm", "dspark"]
    paths = ["--model-path", str(built["automodel"].target), "--speculative-draft-model-path", "/does/not/exist"]
    environment = os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}
    started = time.monotonic()
    done = subprocess.run([*command, *paths], env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode != 0
    assert "The DSpark draft /does/not/exist cannot be used" in done.stderr + done.stdout
    assert "check the path" in done.stderr + done.stdout
    # It must end before anything is loaded or served; a crash of the scheduler waits a minute for dumps.
    assert time.monotonic() - started < 90
