"""Converts a draft from one checkpoint layout to the other.

`plan` reads the config and the files' headers, checks everything and says what would be written; `write` writes it.
Nothing is guessed and nothing is left over: every tensor and every config key has its line in the plan.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_dspark.checkpoints.config import DraftConfig, Layout, flatten, parse_draft_config
from sglang_dspark.checkpoints.errors import CheckpointError
from sglang_dspark.checkpoints.files import (
    CONFIG_NAME,
    INDEX_NAME,
    StoredTensors,
    read_config,
    read_tensors,
    stays_inside,
)
from sglang_dspark.checkpoints.headers import StoredTensor
from sglang_dspark.checkpoints.publish import published
from sglang_dspark.checkpoints.tables import difference
from sglang_dspark.checkpoints.target import EMBEDDING, LM_HEAD, Target, is_target, read_target
from sglang_dspark.checkpoints.tensors import (
    RELEASED_PREFIXES,
    SHARED_WITH_TARGET,
    account,
    canonical_name,
    released_name,
)
from sglang_dspark.checkpoints.translate import (
    KeyMove,
    Translation,
    remembered_problem,
    require_the_same_draft,
    to_automodel,
    to_released,
)
from sglang_dspark.checkpoints.writer import Placement, can_widen, write_json, write_tensors

DEFAULT_SHARD_BYTES = 5_000_000_000
# Tokenizers and the like; a larger file is another copy of the weights.
MAX_COPIED_BYTES = 64 << 20
PLAIN_DTYPES = ("BF16", "F16", "F32")
# Weights in other formats, and what only a pickle reader opens.
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".pkl", ".pickle", ".ckpt", ".joblib", ".npz", ".h5", ".msgpack")


@dataclass(frozen=True)
class TensorMove:
    """One line of the tensor map; `destination` is empty for a tensor that is left out."""

    source: str
    destination: str
    note: str = ""


@dataclass
class Plan:
    """A conversion that was checked and not done yet."""

    source: Path
    layout: Layout
    config: dict[str, Any]
    keys: list[KeyMove]
    tensors: list[TensorMove] = field(default_factory=list)
    placements: list[Placement] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    copied: list[Path] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Of all tensors that will be written."""
        return sum(placement.size_bytes for placement in self.placements)


@dataclass(frozen=True)
class _Draft:
    """A source, read and accounted for."""

    folder: Path
    raw: dict[str, Any]
    config: DraftConfig
    stored: StoredTensors
    bundled: bool


def plan(source: Path, layout: Layout, target_folder: Path | None = None) -> Plan:
    """Read a draft and say what it becomes in `layout`; nothing is written.

    Args:
        source: the draft's folder, or a target's whose files hold a draft.
        layout: to convert to.
        target_folder: the target's, which has the embedding and LM head that AutoModel's layout carries. Where it is
            not needed, the draft is checked against it.

    Raises:
        CheckpointError: with every reason why the source cannot be converted.
    """
    draft = _read_draft(source)
    if draft.bundled and target_folder is None:
        target_folder = source
    target = read_target(target_folder) if target_folder is not None else None
    _refuse(draft, layout, target)
    translation = _translated(draft, layout, target)
    if layout is not draft.config.layout:
        require_the_same_draft(draft.config, translation.config, str(draft.folder))
    made = Plan(source, layout, translation.config, translation.moves, metadata=draft.stored.metadata)
    _place_tensors(made, draft, target)
    made.placements.sort(key=lambda placement: placement.name)
    _list_files(made)
    return made


def write(
    made: Plan,
    destination: Path,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    on_bytes: Callable[[int], None] = lambda count: None,
) -> None:
    """Carry a plan out: `destination` appears whole, or not at all.

    Raises:
        CheckpointError: the destination exists, or what was written does not read back.
        OSError: a source file changed meanwhile, or the disk is full.
    """
    with published(destination) as folder:
        write_tensors(folder, made.placements, made.metadata, max_shard_bytes, on_bytes)
        write_json(folder / CONFIG_NAME, made.config)
        for path in made.copied:
            shutil.copyfile(path, folder / path.name)
        written = {name: tensor.shape for name, tensor in read_tensors(folder).tensors.items()}
        if problems := account(parse_draft_config(read_config(folder), str(destination)), written):
            raise CheckpointError(str(destination), problems)


def _read_draft(folder: Path) -> _Draft:
    raw = read_config(folder)
    where = str(folder)
    if (folder / "hf_quant_config.json").exists():
        problem = (
            "found hf_quant_config.json, a ModelOpt export; that layout is not supported, convert the draft before"
        )
        raise CheckpointError(where, [problem])
    bundled = is_target(raw)
    if bundled:
        raw = _bundled_config(folder, raw)
    config = parse_draft_config(raw, where)
    prefixes = RELEASED_PREFIXES if bundled else ("",)
    stored = read_tensors(folder, wanted=lambda name: name.startswith(prefixes))
    problems = account(config, {name: tensor.shape for name, tensor in stored.tensors.items()})
    if not config.quantized:
        problems += [
            f"tensor {name}: asked for {', '.join(PLAIN_DTYPES)}, found {tensor.dtype} and no quantization_config"
            for name, tensor in stored.tensors.items()
            if tensor.dtype not in PLAIN_DTYPES
        ]
    if problems:
        raise CheckpointError(where, problems)
    return _Draft(folder, raw, config, stored, bundled)


def _bundled_config(folder: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """The config of a draft inside its target's: the same keys, as SGLang reads them there, under the draft's name."""
    if "dspark_block_size" not in flatten(raw):
        inside = folder / "dspark"
        hint = f"; its draft is {inside}, pass that" if (inside / CONFIG_NAME).is_file() else ""
        raise CheckpointError(str(folder), [f"asked for a draft, found a target without dspark_* keys{hint}"])
    left_out = ("text_config", "vision_config")
    flat = {key: value for key, value in flatten(raw).items() if key not in left_out}
    return flat | {"architectures": [Layout.RELEASED.value], "model_type": "minimax_m3"}


def _refuse(draft: _Draft, layout: Layout, target: Target | None) -> None:
    """What cannot be converted, whatever its tensors are."""
    problems = []
    if draft.config.layout is layout and not draft.bundled:
        problems.append(f"asked for the {layout.name.lower()} layout, found that it has it already; use it as it is")
    if problem := remembered_problem(draft.raw):
        problems.append(problem)
    if draft.config.quantized and draft.config.layout is not layout:
        problems.append(
            "quantization_config: its module names belong to one layout, and AutoModel trains plain drafts; convert "
            "the draft before it is quantised, or remove the key where every tensor is stored plain"
        )
    if target is not None:
        problems += draft.config.problems_with_target(target.facts)
    if problems:
        raise CheckpointError(str(draft.folder), problems)


def _translated(draft: _Draft, layout: Layout, target: Target | None) -> Translation:
    if layout is Layout.RELEASED:
        if draft.bundled:
            return Translation(dict(draft.raw), [KeyMove(key, key) for key in draft.raw])
        return to_released(draft.raw)
    if target is None:
        problem = (
            f"asked for AutoModel's layout, which carries copies of the target's {EMBEDDING} and {LM_HEAD}; found no "
            "target: pass its folder as --target"
        )
        raise CheckpointError(str(draft.folder), [problem])
    return to_automodel(draft.raw, target.model_type)


def _place_tensors(made: Plan, draft: _Draft, target: Target | None) -> None:
    shared = {name: stored for name, stored in draft.stored.tensors.items() if name in SHARED_WITH_TARGET}
    tables = target.tables() if target is not None else {}
    for name, stored in sorted(draft.stored.tensors.items()):
        if name in shared:
            compared = "which it equals" if name in tables else "which it should equal: not compared without --target"
            made.tensors.append(TensorMove(name, "", f"the released layout borrows the target's, {compared}"))
            continue
        canonical = canonical_name(name, draft.config.layout) or name
        destination = released_name(canonical) if made.layout is Layout.RELEASED else canonical
        made.placements.append(Placement(destination, stored))
        made.tensors.append(TensorMove(name, destination))
    if made.layout is Layout.AUTOMODEL and target is not None:
        _place_tables(made, draft, target, tables)
    elif target is not None:
        _compare_tables(draft, shared, tables)


def _place_tables(made: Plan, draft: _Draft, target: Target, tables: dict[str, StoredTensor]) -> None:
    """Copies of the target's embedding and LM head, in float32 where the draft is."""
    # Every dtype of a plain draft's own tensors; AutoModel keeps a draft in one.
    wide = {stored.dtype for stored in draft.stored.tensors.values()} == {"F32"}
    shape = (draft.config.vocab_size, draft.config.hidden_size)
    problems = []
    for name in SHARED_WITH_TARGET:
        stored = tables.get(name)
        if stored is None:
            problems.append(f"{name}: found in none of its safetensors files; pass the whole target")
        elif stored.shape != shape or stored.dtype not in PLAIN_DTYPES:
            problems.append(
                f"{name}: asked for shape {list(shape)} in {', '.join(PLAIN_DTYPES)}, found {list(stored.shape)} in "
                f"{stored.dtype}; take the unquantised target that the draft was made for"
            )
        else:
            widen = wide and can_widen(stored)
            note = "from the target" + (", widened exactly to the draft's F32" if widen else "")
            if name == LM_HEAD and target.tied:
                note += ", which ties it to its embedding"
            made.placements.append(Placement(name, stored, widen))
            made.tensors.append(TensorMove("", name, note))
    if problems:
        raise CheckpointError(str(target.folder), problems, "target")


def _compare_tables(draft: _Draft, shared: dict[str, StoredTensor], tables: dict[str, StoredTensor]) -> None:
    problems = [
        f"tensor {name}: {found}; it would be lost: the released layout uses the target's"
        for name, copy in shared.items()
        if name in tables and (found := difference(copy, tables[name]))
    ]
    if problems:
        raise CheckpointError(str(draft.folder), problems)


def _list_files(made: Plan) -> None:
    """The small files beside the weights go along; everything else is named."""
    for path in sorted(made.source.iterdir()):
        if path.name in (CONFIG_NAME, INDEX_NAME) or path.suffix == ".safetensors":
            continue
        if not path.is_file() or path.name.startswith("."):
            made.left_out.append((path.name, "not a plain file of the checkpoint"))
        elif path.stat().st_size > MAX_COPIED_BYTES or path.suffix in OTHER_WEIGHTS:
            made.left_out.append((path.name, "another copy of weights, by its name or size"))
        elif not stays_inside(made.source, path):
            made.left_out.append((path.name, "a link that leaves the checkpoint's folder"))
        else:
            made.copied.append(path)
