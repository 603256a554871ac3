"""Everything that reads a draft, run on one folder: it is refused with our error, or accepted as what it says."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

from safetensors import SafetensorError, safe_open

from sglang_dspark.checkpoints import CheckpointError, Layout, parse_draft_config, read_config
from sglang_dspark.checkpoints.convert import plan
from sglang_dspark.checkpoints.files import read_tensors
from sglang_dspark.checkpoints.lint import Level, lint
from sglang_dspark.checkpoints.translate import released_config, remembered_problem, to_automodel, to_released
from sglang_dspark.serving.draft_check import check_draft

from .drafts import Original
from .readings import unlike


def examine(original: Original, folder: Path, counts: Counter[str]) -> None:
    """Run every reader; whatever it raises but CheckpointError is a crash, and goes through.

    Fails where something was accepted that is not what the files say.
    """
    raw = config = None
    try:
        raw = read_config(folder)
        config = parse_draft_config(raw, str(folder))
        assert not unlike(raw, config), unlike(raw, config)
        _check_translations(raw, config)
        counts["config accepted"] += 1
    except CheckpointError as error:
        _check_message(error)
    _check_tensors(folder, counts)
    _check_lint(original, folder)
    try:
        checked = check_draft(str(folder), None, original.facts, 1)
        assert config is not None and checked == config
        counts["draft accepted by the server's check"] += 1
    except CheckpointError as error:
        _check_message(error)
    try:
        made = plan(folder, original.other_layout, original.target)
        again = parse_draft_config(made.config, "converted")
        assert config is not None and dataclasses.replace(again, layout=config.layout) == config
        counts["conversion accepted"] += 1
    except CheckpointError as error:
        _check_message(error)


def _check_translations(raw: dict, config) -> None:
    """The config in the other layout is the same draft, and the way back gives every key back."""
    try:
        if config.layout is Layout.AUTOMODEL:
            there = released_config(raw, "x")
            assert dataclasses.replace(parse_draft_config(there, "x"), layout=Layout.AUTOMODEL) == config
            if "dspark_replaced_keys" not in raw and "dspark_source_layout" not in raw:
                back = to_automodel(to_released(raw).config, "minimax_m3").config
                assert _same(back, raw), {key: (raw.get(key), back.get(key)) for key in {*raw, *back}}
        elif not remembered_problem(raw):
            there = to_automodel(raw, "minimax_m3").config
            assert dataclasses.replace(parse_draft_config(there, "x"), layout=Layout.RELEASED) == config
    except CheckpointError as error:
        _check_message(error)


def _same(one: dict, other: dict) -> bool:
    """NaN equals NaN, 1 is not 1.0, and a null at the top is a key that is not there."""
    texts = [json.dumps({k: v for k, v in config.items() if v is not None}, sort_keys=True) for config in (one, other)]
    return texts[0] == texts[1]


def _check_tensors(folder: Path, counts: Counter[str]) -> None:
    try:
        stored = read_tensors(folder).tensors
    except CheckpointError as error:
        _check_message(error)
        return
    counts["tensors accepted"] += 1
    for file in {tensor.file for tensor in stored.values()}:
        assert file.parent == folder and file.suffix == ".safetensors"
        size = file.stat().st_size
        ours = {name: tensor for name, tensor in stored.items() if tensor.file == file}
        assert all(0 < tensor.start and tensor.start + tensor.size_bytes <= size for tensor in ours.values())
        try:
            with safe_open(file, framework="pt") as library:
                theirs = {name: tuple(library.get_slice(name).get_shape()) for name in library.keys()}
        except SafetensorError as error:
            raise AssertionError(f"{file.name}: we accept what the library refuses: {error}") from error
        assert {name: tensor.shape for name, tensor in ours.items()} == theirs


def _check_lint(original: Original, folder: Path) -> None:
    findings = lint(folder, original.target)
    assert findings
    for finding in findings:
        finding.text.encode("utf-8")
        assert finding.level in Level and finding.text.isprintable()


def _check_message(error: CheckpointError) -> None:
    """It names a problem, can be printed anywhere, and is no flood."""
    assert error.problems and all(problem.isprintable() and problem for problem in error.problems)
    assert len(str(error).encode("utf-8")) < 2_000_000
