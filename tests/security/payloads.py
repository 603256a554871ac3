"""A draft with things in it that must never run: each would write a marker."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

from sglang_dspark.checkpoints import CheckpointError, Layout
from sglang_dspark.checkpoints.convert import plan, write
from sglang_dspark.checkpoints.lint import lint
from sglang_dspark.checkpoints.target import read_target
from sglang_dspark.reference.checkpoint import from_checkpoint
from sglang_dspark.serving.draft_check import check_draft
from tests.unit.checkpoints.drafts import automodel
from tests.unit.checkpoints.folders import save_draft, save_target


class Writes:
    """Unpickled, it writes the marker."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def hostile_pickle(marker: Path) -> bytes:
    """A pickle that writes the marker where it is read."""
    return pickle.dumps(Writes(marker))


def pair(folder: Path, **changes: Any) -> tuple[Path, Path]:
    """A good draft and its target."""
    return save_draft(folder / "draft", automodel(**changes)), save_target(folder / "target")


def change_config(draft: Path, **changes: Any) -> None:
    """Write other values into its config."""
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(config | changes))


def read_everything(draft: Path, target: Path, converted: Path) -> list[str]:
    """Every reader of a draft that this project has; what they refused it for."""
    refusals = []
    for read in (
        lambda: check_draft(str(draft), None, read_target(target).facts, 1),
        lambda: write(plan(draft, Layout.RELEASED, target), converted),
        lambda: from_checkpoint(draft),
    ):
        try:
            read()
        except CheckpointError as error:
            refusals += error.problems
    lint(draft, target)
    return refusals
