"""`sglang-dspark convert`: what it prints, what it writes, and its exit status."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from sglang_dspark import cli
from sglang_dspark.checkpoints import Layout, read_config
from sglang_dspark.cli.convert import size_bytes
from tests.unit.checkpoints.drafts import automodel, released
from tests.unit.checkpoints.folders import contents, save_draft, save_target


def run(*arguments: object) -> int:
    return cli.main(["convert", *(str(argument) for argument in arguments)])


def test_there_and_back(tmp_path: Path, capsys) -> None:
    a, target = save_draft(tmp_path / "a", automodel()), save_target(tmp_path / "target")
    assert run(a, tmp_path / "b", "--to", "released") == 0
    shown = capsys.readouterr().out
    assert f"Wrote 29 tensors (93,178 bytes) to {tmp_path / 'b'}." in shown
    assert "Left out lm_head.weight: the released layout borrows the target's" in shown
    assert read_config(tmp_path / "b")["architectures"] == [Layout.RELEASED.value]
    assert run(tmp_path / "b", tmp_path / "back", "--to", "automodel", "--target", target) == 0
    assert contents(tmp_path / "back") == contents(a)


def test_a_shard_size(tmp_path: Path) -> None:
    a = save_draft(tmp_path / "a", automodel())
    assert run(a, tmp_path / "b", "--to", "released", "--max-shard-size", "50KB") == 0
    files = list((tmp_path / "b").glob("*.safetensors"))
    assert len(files) == 2 and all(path.stat().st_size < 60_000 for path in files)


@pytest.mark.parametrize("destination", [True, False])
def test_a_dry_run_shows_everything_and_touches_nothing(tmp_path: Path, capsys, destination: bool) -> None:
    """Also not the times of the files: nothing is opened for writing."""
    a = save_draft(tmp_path / "a", automodel(something=1))
    before = contents(tmp_path), {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    out = [tmp_path / "b"] if destination else []
    assert run(a, *out, "--to", "released", "--dry-run") == 0
    assert before == (contents(tmp_path), {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")})
    shown = capsys.readouterr().out.splitlines()
    for line in (
        "  norm.weight -> language_model.model.dspark.final_norm.weight",
        "  mask_token_id -> dspark_noise_token_id",
        "  target_layer_ids -> dflash_config.target_layer_ids",
        "  added: dspark_use_dense_ffn (the draft's MLP is dense)",
        "  something",
        "  tokenizer.json",
    ):
        assert line in shown, line
    assert any(line.startswith("  lm_head.weight -> left out (") for line in shown)


def test_a_dry_run_refuses_what_a_run_would(tmp_path: Path, capsys) -> None:
    """It is how one finds out beforehand."""
    b = save_draft(tmp_path / "b", released())
    assert run(b, "--to", "automodel", "--dry-run") == 1
    assert "--target" in capsys.readouterr().err


def test_a_refusal_is_a_message_and_a_status(tmp_path: Path, capsys) -> None:
    a = save_draft(tmp_path / "a", automodel())
    (tmp_path / "b").mkdir()
    before = contents(tmp_path)
    assert run(a, tmp_path / "b", "--to", "released") == 1
    error = capsys.readouterr().err
    assert error.startswith(f"sglang-dspark convert: The destination {tmp_path / 'b'} cannot be used:")
    assert contents(tmp_path) == before


def test_check_of_a_good_pair(tmp_path: Path, capsys) -> None:
    draft, target = save_draft(tmp_path / "a", automodel()), save_target(tmp_path / "target")
    assert run("--check", draft, "--target", target) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "0 problem(s), 0 warning(s)" and all(line.startswith("ok ") for line in lines[:-1])


def test_a_warning_is_no_failure_and_a_problem_is(tmp_path: Path, capsys) -> None:
    draft = save_draft(tmp_path / "a", automodel())
    assert run("--check", draft, "--target", save_target(tmp_path / "warned", rms_norm_eps=1e-5)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "0 problem(s), 1 warning(s)"
    assert [line.split()[:2] for line in lines if line.startswith("warning")] == [["warning", "rms_norm_eps"]]
    assert run("--check", draft, "--target", save_target(tmp_path / "wrong", hidden_size=64)) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 problem(s)")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a"],
        ["a", "b"],
        ["a", "--to", "released"],
        ["a", "b", "--to", "speculators"],
        ["--check", "a"],
        ["--check", "a", "--target", "t", "--dry-run"],
        ["--check", "a", "--target", "t", "--to", "released"],
        ["b", "--check", "a", "--target", "t"],
        ["a", "b", "--to", "released", "--max-shard-size", "0"],
        ["a", "b", "--to", "released", "--max-shard-size", "5 bananas"],
    ],
)
def test_a_command_line_that_means_nothing(arguments: list[str], capsys) -> None:
    """Half an instruction must not be guessed at: a check that converts, or the other way round."""
    with pytest.raises(SystemExit) as end:
        run(*arguments)
    assert end.value.code == 2
    assert "usage: sglang-dspark convert" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5GB", 5 * 10**9), ("500mb", 5 * 10**8), ("1 KiB", 1024), ("2MiB", 2 << 20), ("3GiB", 3 << 30), ("77", 77)],
)
def test_sizes(text: str, expected: int) -> None:
    assert size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1", "1.5GB", "5TB", "5G", "0KB"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        size_bytes(text)
