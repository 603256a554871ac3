"""New weights for a running server: what they are for is told by what they are.

SGLang 0.5.23 loads whatever `/update_weights_from_disk` names into the target and then into the draft. A target's
folder then fails in the draft, with the target already changed, and rolling back to the same folder ends the
scheduler; a draft's folder is loaded into the target. Here a folder is read first: a target's goes to the target, a
draft's to the draft, and what fits neither changes nothing.

Weights that a trainer pushes (tensors, a process group, a checkpoint engine) go to the target alone; they come in
pieces, and a draft is only taken whole.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_dspark.checkpoints import CheckpointError, DraftConfig, TargetFacts
from sglang_dspark.checkpoints.config import flatten
from sglang_dspark.checkpoints.target import is_target
from sglang_dspark.checkpoints.tensors import canonical_name, expected_shapes
from sglang_dspark.serving import draft_check

logger = logging.getLogger(__name__)

Outcome = tuple[bool, str]  # as SGLang's updater answers: done or not, and a sentence

# A draft that ships beside its target, as SGLang finds it at start.
_SUBFOLDER = "dspark"
_FROM_DISK = "post the draft's folder to /update_weights_from_disk"


@dataclass(frozen=True)
class NewWeights:
    """The folders (or hub names) that hold new weights; None where there are none."""

    target: str | None
    draft: str | None


def guard(target_runner: Any, draft_runner: Any) -> None:
    """Put our updaters in front of SGLang's, on the model runners of the target and of its draft."""
    target = draft_check.target_facts(target_runner.model_config.hf_config)
    draft = draft_runner.model

    def read(path: str) -> NewWeights:
        return new_weights(path, target, draft.draft_config)

    target_runner.weight_updater = TargetUpdater(target_runner.weight_updater, read)
    draft_runner.weight_updater = DraftUpdater(draft_runner.weight_updater, read, draft)


def new_weights(path: str, target: TargetFacts, served: DraftConfig) -> NewWeights:
    """What a checkpoint holds, by its config and, for a draft, by the names and shapes of its tensors.

    Args:
        path: a folder, or the name of a repository on the hub.
        target: the served target's numbers.
        served: the served draft's config.

    Raises:
        CheckpointError: it is neither a MiniMax-M3 target of these numbers nor a draft that may take this one's place.
    """
    raw = draft_check.config_at(path, None)
    if not is_target(raw):
        _check_draft(path, target, served)
        return NewWeights(None, path)
    text = flatten(raw)
    problems = [
        f"{name}: the served target has {asked}, found {text.get(name)!r}; start a server with this checkpoint"
        for name, asked in (
            ("num_hidden_layers", target.num_layers),
            ("hidden_size", target.hidden_size),
            ("vocab_size", target.vocab_size),
        )
        if text.get(name) != asked
    ]
    if problems:
        raise CheckpointError(path, problems, "target")
    beside = Path(path) / _SUBFOLDER
    if not beside.is_dir():
        return NewWeights(path, None)
    _check_draft(str(beside), target, served)
    return NewWeights(path, str(beside))


def _check_draft(path: str, target: TargetFacts, served: DraftConfig) -> None:
    """Raise unless the draft fits the target and differs from the served one in its weights alone."""
    # The served config is of what the ranks share already: one rank stands for all.
    found = dataclasses.asdict(draft_check.check_draft(path, None, target, 1))
    problems = [
        f"{name}: the served draft has {asked}, found {found[name]}; start a server with this draft"
        for name, asked in dataclasses.asdict(served).items()
        if asked != found[name]
    ]
    if problems:
        raise CheckpointError(path, problems)


class _Updater:
    """SGLang's updater of one model runner; everything that is not overridden here is its."""

    def __init__(self, updater: Any, read: Callable[[str], NewWeights]) -> None:
        self._updater = updater
        self._read = read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._updater, name)


class TargetUpdater(_Updater):
    """The target's. SGLang asks it first, so what is refused here has changed nothing."""

    def update_weights_from_disk(self, model_path: str, *args: Any, **options: Any) -> Outcome:
        """Load the target that the folder holds, if it holds one."""
        try:
            found = self._read(model_path)
        except CheckpointError as error:
            return False, f"Nothing was changed. {error}"
        if found.target is None:
            # Counted as an update of the target: the draft's K and V of cached prefixes are flushed with the target's.
            return True, "The target keeps its weights."
        outcome: Outcome = self._updater.update_weights_from_disk(found.target, *args, **options)
        return outcome


class DraftUpdater(_Updater):
    """The draft's. Answers stay the target's own whatever happens here."""

    def __init__(self, updater: Any, read: Callable[[str], NewWeights], draft: Any) -> None:
        """Take SGLang's updater and our draft model."""
        super().__init__(updater, read)
        self._draft = draft

    def update_weights_from_disk(self, model_path: str, load_format: str, *args: Any, **options: Any) -> Outcome:
        """Load the draft that the folder holds, if it holds one; what its bound ops copied is renewed with it."""
        try:
            found = self._read(model_path)
            if found.draft is None:
                logger.info("sglang-dspark: %s is a target's; the draft keeps its weights", model_path)
                return True, "The draft keeps its weights."
            load_format = draft_check.safetensors_only(load_format)
        except (CheckpointError, ValueError) as error:
            return False, f"Nothing was changed. {error}"
        served = self._updater.model_config.model_path
        try:
            self._load(found.draft, load_format, *args, **options)
        except Exception as error:  # SGLang rolls back from the folder that has just failed, so any may come of it.
            return False, f"{error}\n{self._back_to(served, load_format, *args, **options)}"
        return True, "The draft has new weights."

    def _load(self, path: str, *args: Any, **options: Any) -> None:
        done, message = self._updater.update_weights_from_disk(path, *args, **options)
        problems = self._draft.shared_table_problems() if done else [message]
        if problems:
            raise CheckpointError(path, problems)

    def _back_to(self, served: str, *args: Any, **options: Any) -> str:
        try:
            self._load(served, *args, **options)
        except Exception as error:
            return (
                f"The draft's weights are partly new, for the old ones cannot be read either: {error}\n"
                f"Answers stay the target's, and proposals may be bad until a good draft is there: {_FROM_DISK}."
            )
        return "The draft has its old weights again."

    def update_weights_from_tensor(self, named_tensors: Any, load_format: str | None = None) -> Outcome:
        """Refuse pieces of a draft, and pass over a target's."""
        if isinstance(named_tensors, dict):  # a flattened bucket, whose metadata has the names
            return self._pass_over(meta.name for meta in named_tensors["metadata"])
        return self._pass_over(name for name, _ in named_tensors)

    def load_weights_from_distributed(self, named_tensors: Iterable[tuple[str, Any]]) -> Outcome:
        """As `update_weights_from_tensor`."""
        return self._pass_over(name for name, _ in named_tensors)

    def update_weights_from_ipc(self, recv_req: Any) -> Outcome:
        """Pass over what a checkpoint engine sends: it can name no model, so it means the target."""
        del recv_req
        return self._pass_over(())

    def _pass_over(self, names: Iterable[str]) -> Outcome:
        config = self._draft.draft_config
        expected = expected_shapes(config)
        if own := [name for name in names if canonical_name(name, config.layout) in expected]:
            return False, (
                f"asked to load {own[0]} and {len(own) - 1} more tensors of the draft from memory: a draft is taken "
                f"whole and checked, so {_FROM_DISK}. It keeps its weights."
            )
        logger.info("sglang-dspark: pushed weights went to the target alone; the draft keeps its own")
        return True, "The draft keeps its weights."
