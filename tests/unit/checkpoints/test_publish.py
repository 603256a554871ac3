"""A converted folder appears whole or not at all, and never in place of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_dspark.checkpoints import CheckpointError, Layout, convert
from sglang_dspark.checkpoints.convert import plan, write
from tests.unit.checkpoints.drafts import automodel
from tests.unit.checkpoints.folders import contents, save_draft

B = Layout.RELEASED


@pytest.fixture
def made(tmp_path: Path) -> convert.Plan:
    return plan(save_draft(tmp_path / "a", automodel()), B)


@pytest.mark.parametrize("kind", ["folder", "file", "full", "link"])
def test_an_existing_destination_is_refused(tmp_path: Path, made: convert.Plan, kind: str) -> None:
    """Not even an empty folder, which rename() would replace without a word."""
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    elif kind == "link":
        out.symlink_to(tmp_path / "nowhere")
    else:
        out.mkdir()
        if kind == "full":
            (out / "mine").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match="found that it exists"):
        write(made, out)
    assert contents(tmp_path) == before


def test_a_destination_in_no_folder(tmp_path: Path, made: convert.Plan) -> None:
    with pytest.raises(CheckpointError, match="no such folder; make it first"):
        write(made, tmp_path / "no" / "out")


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_half_way_leaves_nothing(
    tmp_path: Path, made: convert.Plan, monkeypatch, error: BaseException
) -> None:
    """A folder that looks like a checkpoint and holds half of one would be served."""
    seen: list[int] = []

    def on_bytes(count: int) -> None:
        seen.append(count)
        assert not (tmp_path / "out").exists()
        if len(seen) == 5:
            raise error

    with pytest.raises(type(error)):
        write(made, tmp_path / "out", on_bytes=on_bytes)
    assert {path.name for path in tmp_path.iterdir()} == {"a"}


def test_a_destination_that_appears_meanwhile_is_left_alone(tmp_path: Path, made: convert.Plan) -> None:
    """Two converters with one destination: the second must not replace what the first published."""
    with pytest.raises(CheckpointError, match="found that it exists"):
        write(made, tmp_path / "out", on_bytes=lambda count: (tmp_path / "out").mkdir(exist_ok=True))
    assert {path.name for path in tmp_path.iterdir()} == {"a", "out"} and not list((tmp_path / "out").iterdir())


def test_a_source_that_is_cut_meanwhile(tmp_path: Path, made: convert.Plan) -> None:
    path = tmp_path / "a/model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(OSError, match="ended early"):
        write(made, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"a"}


def test_the_folder_can_be_read_by_others(tmp_path: Path, made: convert.Plan) -> None:
    """mkdtemp's folders are their maker's alone: a server of another user could not open the draft."""
    write(made, tmp_path / "out")
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_what_was_written_is_read_again(tmp_path: Path, made: convert.Plan) -> None:
    """A plan that loses a tensor is noticed before anything is published."""
    made.placements.pop()
    with pytest.raises(CheckpointError, match="missing"):
        write(made, tmp_path / "out")
    assert not (tmp_path / "out").exists()
