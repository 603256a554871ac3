"""What is known to fail is said before a server loads for minutes, or runs and accepts nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_dspark.checkpoints.errors import CheckpointError
from sglang_dspark.checkpoints.lint import Level
from sglang_dspark.doctor.findings import Case
from sglang_dspark.launch import checks
from sglang_dspark.launch.arguments import BadArguments, Given
from sglang_dspark.launch.machine import Machine
from tests.unit.checkpoints.drafts import automodel, released
from tests.unit.checkpoints.folders import save_draft, save_target
from tests.unit.launch.machines import B200, CPU, H200, MI300X

ON_CPU = {"SGLANG_USE_CPU_ENGINE": "1"}
SPARSE = {"sparse_attention_freq": [0, 0, 1, 1, 1, 1]}
NVFP4 = {"quant_method": "mxfp8", "moe_quant_algo": "NVFP4", "moe_quant_format": "nvfp4-pack-quantized"}


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    return str(save_target(tmp_path / "target")), str(save_draft(tmp_path / "draft", released()))


def problems(
    words: list[str], draft: str, machine: Machine = CPU, environment: dict[str, str] = ON_CPU
) -> dict[str, str]:
    found = list(checks.check(Case(environment), Given(words), draft, machine))
    assert all(finding.remedy for finding in found if finding.level is not Level.OK)
    return {finding.subject: finding.found for finding in found if finding.level is Level.PROBLEM}


def test_a_pair_that_fits(pair: tuple[str, str]) -> None:
    assert problems(["--model-path", pair[0]], pair[1]) == {}


def test_a_draft_of_another_target(pair: tuple[str, str], tmp_path: Path) -> None:
    other = save_target(tmp_path / "other", num_hidden_layers=4)
    assert "num_target_layers" in problems(["--model-path", str(other)], pair[1])


def test_folders_that_are_not_there(pair: tuple[str, str], tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert problems(["--model-path", pair[0]], missing) == {"draft": f"no such folder: {missing}"}
    assert problems(["--model-path", missing], pair[1]) == {"target": f"no such folder: {missing}"}


def test_a_repository_is_sglang_s_to_fetch(pair: tuple[str, str]) -> None:
    found = list(checks.check(Case(ON_CPU), Given(["--model-path", pair[0]]), "MiniMaxAI/a-draft", CPU))
    (line,) = (finding for finding in found if finding.subject == "draft")
    assert line.level is Level.WARNING and "SGLang fetches it" in line.found


def test_ranks_that_do_not_divide(pair: tuple[str, str]) -> None:
    assert "--tp-size" in problems(["--model-path", pair[0], "--tp", "3"], pair[1])
    assert problems(["--model-path", pair[0], "--tp", "two"], pair[1]) == {"--tp-size": "'two'"}
    fits = checks.draft_fits(pair[1])
    assert [ranks for ranks in (1, 2, 3, 4, 8) if fits(ranks)] == [1, 2, 4]


def test_a_draft_that_is_not_here_yet_is_not_the_folder_one_stands_in(pair: tuple[str, str], monkeypatch) -> None:
    monkeypatch.chdir(pair[1])
    assert checks.draft_fits("")(3)


def test_no_gpu_where_one_was_meant(pair: tuple[str, str]) -> None:
    assert list(problems(["--model-path", pair[0]], pair[1], CPU, {})) == ["platform"]


@pytest.mark.parametrize(
    ("machine", "target", "environment", "refused"),
    [
        (H200, {"sparse_attention_config": SPARSE}, {}, "no verify metadata"),
        (H200, {"sparse_attention_config": SPARSE, "quantization_config": NVFP4}, {}, "no verify metadata"),
        (B200, {"sparse_attention_config": SPARSE, "quantization_config": NVFP4}, {}, None),
        (H200, {}, {}, None),
        (MI300X, {"sparse_attention_config": SPARSE}, {}, None),
        (MI300X, {"sparse_attention_config": SPARSE}, {"SGLANG_RAGGED_VERIFY_MODE": "compact"}, "at one width"),
    ],
)
def test_what_sglang_cannot_verify(machine: Machine, target: dict, environment: dict, refused, tmp_path: Path) -> None:
    """The worker refuses too, once the weights have been loaded."""
    folder, draft = save_target(tmp_path / "target", **target), save_draft(tmp_path / "draft", released())
    found = problems(["--model-path", str(folder)], str(draft), machine, environment)
    assert (refused in found["verification"]) if refused else "verification" not in found


def test_a_plugin_that_sglang_leaves_out(pair: tuple[str, str]) -> None:
    found = problems(["--model-path", pair[0]], pair[1], CPU, {**ON_CPU, "SGLANG_PLUGINS": "other"})
    assert list(found) == ["SGLANG_PLUGINS"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "asked for --model-path, found none"),
        (["--speculative-algorithm", "EAGLE", "--model-path", "a/b"], "found --speculative-algorithm EAGLE"),
    ],
)
def test_arguments_that_mean_something_else(words: list[str], message: str) -> None:
    with pytest.raises(BadArguments, match=message):
        checks.draft_of(Given(words))


def test_where_the_draft_is(tmp_path: Path) -> None:
    """As SGLang looks for it: named, or in the target's own folder; one among the target's tensors is not served."""
    target = save_target(tmp_path / "target")
    with pytest.raises(BadArguments, match="asked for --speculative-draft-model-path, found none"):
        checks.draft_of(Given(["--model-path", str(target)]))
    assert checks.draft_of(Given(["--model-path", str(target), "--speculative-draft-model", "d"])) == "d"
    assert checks.draft_of(Given(["--model-path", "owner/name"])) == ""
    assert checks.draft_of(Given(["--model-path", "/no/such"])) == "/no/such"
    beside = save_draft(target / "dspark", automodel())
    assert checks.draft_of(Given(["--model-path", str(target)])) == str(beside)
    inside = save_target(tmp_path / "inside", dspark_block_size=7)
    with pytest.raises(BadArguments, match="convert .*inside DRAFT --to released"):
        checks.draft_of(Given(["--model-path", str(inside)]))


def test_a_target_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json, found no such file"):
        checks.draft_of(Given(["--model-path", str(tmp_path)]))


def test_the_draft_s_keys_are_sglang_s() -> None:
    from sglang.srt.arg_groups import speculative_hook
    from sglang.srt.speculative.dspark_components.dspark_config import checkpoint_bundles_dspark_draft

    assert speculative_hook._DSPARK_DRAFT_SUBFOLDER == checks._DRAFT_FOLDER
    assert all(checkpoint_bundles_dspark_draft({key: 1}) for key in checks._BUNDLED_KEYS)
    assert not checkpoint_bundles_dspark_draft(json.loads("{}"))
