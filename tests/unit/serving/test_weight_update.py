"""New weights for a running server go where they belong, whole, or change nothing; the real server is in tests/e2e."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PretrainedConfig

from sglang_dspark.checkpoints import parse_draft_config, read_config
from sglang_dspark.demo import DemoPair, DemoSpec, build
from sglang_dspark.serving.weight_update import guard


class Updater:
    """SGLang's updater of one model: what it was asked to load, and its failures."""

    def __init__(self, path: Path) -> None:
        self.model_config = SimpleNamespace(model_path=str(path))
        self.loaded: list[str] = []
        self.load_formats: list[str] = []
        self.fails: dict[str, Exception] = {}

    def update_weights_from_disk(self, model_path: str, load_format: str, recapture_cuda_graph: bool = False) -> Any:
        assert recapture_cuda_graph
        self.load_formats.append(load_format)
        self.model_config.model_path = model_path
        self.loaded.append(model_path)
        if model_path in self.fails:
            raise self.fails[model_path]
        return True, "Succeeded to update model weights."

    def begin_weight_update(self) -> str:
        return "begun"


class Served:
    """A server of the pair, as far as an update sees it."""

    def __init__(self, pair: DemoPair) -> None:
        self.problems: list[str] = []
        draft = SimpleNamespace(
            draft_config=parse_draft_config(read_config(pair.draft), "draft"),
            shared_table_problems=lambda: self.problems,
        )
        self.of_target, self.of_draft = Updater(pair.target), Updater(pair.draft)
        config = PretrainedConfig(**json.loads((pair.target / "config.json").read_text()))
        target_runner = SimpleNamespace(weight_updater=self.of_target, model_config=SimpleNamespace(hf_config=config))
        draft_runner = SimpleNamespace(weight_updater=self.of_draft, model=draft)
        guard(target_runner, draft_runner)
        self.runners = [target_runner, draft_runner]

    def update(self, path: Path, load_format: str = "auto") -> tuple[bool, str]:
        """As SGLang asks them: the target, then the draft unless that failed."""
        for runner in self.runners:
            done, message = runner.weight_updater.update_weights_from_disk(
                str(path), load_format, recapture_cuda_graph=True
            )
            if not done:
                break
        return done, message

    @property
    def loaded(self) -> tuple[list[str], list[str]]:
        return self.of_target.loaded, self.of_draft.loaded


@pytest.fixture(scope="module", params=("automodel", "released"))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DemoPair:
    return build(tmp_path_factory.mktemp("pair"), layout=request.param, spec=DemoSpec.tiny())


@pytest.fixture
def pair(built: DemoPair, tmp_path: Path) -> DemoPair:
    """The pair, with a draft that may be broken."""
    return DemoPair(built.target, Path(shutil.copytree(built.draft, tmp_path / "draft")))


def test_a_draft_goes_to_the_draft(built: DemoPair, pair: DemoPair) -> None:
    """SGLang would load it into the target first, where a name that it knows would overwrite the target's."""
    served = Served(built)
    assert served.update(pair.draft) == (True, "The draft has new weights.")
    assert served.loaded == ([], [str(pair.draft)])


def test_no_pickle_is_loaded_for_a_draft(built: DemoPair, pair: DemoPair) -> None:
    """As at start: "auto" would go on to pickles where a folder has no safetensors."""
    served = Served(built)
    assert served.update(pair.draft)[0] and served.of_draft.load_formats == ["safetensors"]
    done, message = served.update(pair.draft, "pt")
    assert not done and "Nothing was changed" in message and "never from pickles" in message
    assert served.of_draft.load_formats == ["safetensors"]


def test_a_target_goes_to_the_target(built: DemoPair) -> None:
    """SGLang would load it into the draft too, fail there, and fail again rolling back, which ends the scheduler."""
    served = Served(built)
    assert served.update(built.target)[0]
    assert served.loaded == ([str(built.target)], [])


def test_a_target_with_its_draft_beside_it_updates_both(built: DemoPair, tmp_path: Path) -> None:
    target = Path(shutil.copytree(built.target, tmp_path / "target"))
    shutil.copytree(built.draft, target / "dspark")
    served = Served(built)
    assert served.update(target)[0]
    assert served.loaded == ([str(target)], [str(target / "dspark")])


def changed_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_another_draft_is_refused_and_nothing_is_changed(built: DemoPair, pair: DemoPair) -> None:
    """One of another block size would load without an error and propose badly from then on."""
    key = "block_size" if "block_size" in read_config(pair.draft) else "dspark_block_size"
    changed_config(pair.draft, **{key: 3})
    served = Served(built)
    done, message = served.update(pair.draft)
    assert not done and "Nothing was changed" in message
    assert "block_size: the served draft has 7, found 3; start a server with this draft" in message
    assert served.loaded == ([], [])


def test_a_draft_without_a_tensor_is_refused_and_nothing_is_changed(built: DemoPair, pair: DemoPair) -> None:
    tensors = load_file(pair.draft / "model.safetensors")
    lost = next(name for name in tensors if "hidden_norm" in name)
    del tensors[lost]
    save_file(tensors, pair.draft / "model.safetensors", metadata={"format": "pt"})
    served = Served(built)
    done, message = served.update(pair.draft)
    assert not done and "Nothing was changed" in message and f"{lost}: missing" in message
    assert served.loaded == ([], [])


def test_another_target_is_refused(built: DemoPair, tmp_path: Path) -> None:
    target = Path(shutil.copytree(built.target, tmp_path / "target"))
    changed_config(target, vocab_size=16)
    served = Served(built)
    done, message = served.update(target)
    assert not done and "vocab_size: the served target has 8, found 16; start a server" in message
    assert served.loaded == ([], [])


def test_a_path_that_is_nothing_is_refused(built: DemoPair, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    served = Served(built)
    done, message = served.update(tmp_path / "nowhere")
    assert not done and "nowhere" in message and "check the path" in message
    assert served.loaded == ([], [])


def test_a_draft_that_fails_while_loading_leaves_the_old_one(built: DemoPair, pair: DemoPair) -> None:
    """SGLang rolls back from the folder that has just failed, whose error then ends the scheduler."""
    served = Served(built)
    served.of_draft.fails[str(pair.draft)] = OSError("the disk is gone")
    done, message = served.update(pair.draft)
    assert not done and "the disk is gone" in message and "has its old weights again" in message
    assert served.of_draft.loaded == [str(pair.draft), str(built.draft)]
    served.of_draft.fails[str(built.draft)] = OSError("so is the old one")
    done, message = served.update(pair.draft)
    assert not done and "partly new" in message and "Answers stay the target's" in message


def test_copies_of_another_target_s_tables_leave_the_old_draft(built: DemoPair, pair: DemoPair) -> None:
    """The server reads the target's tables; the check is the same as when a draft is loaded at start."""
    served = Served(built)
    served.problems.append("tensor lm_head.weight: differs")
    done, message = served.update(pair.draft)
    assert not done and "lm_head.weight: differs" in message
    assert served.of_draft.loaded == [str(pair.draft), str(built.draft)]


def test_pushed_weights_pass_the_draft_by(built: DemoPair) -> None:
    """A trainer pushes the target's tensors in pieces, and SGLang hands every piece to the draft too, by default."""
    served = Served(built)
    updater = served.runners[1].weight_updater
    foreign = [("model.layers.0.self_attn.q_proj.weight", torch.zeros(1)), ("lm_head.weight", torch.zeros(1))]
    own = next(name for name in load_file(built.draft / "model.safetensors") if "hidden_norm" in name)
    for ask in (
        lambda pieces: updater.update_weights_from_tensor(pieces, load_format=None),
        lambda pieces: updater.load_weights_from_distributed(pieces),
        lambda pieces: updater.update_weights_from_tensor(
            {"metadata": [SimpleNamespace(name=name) for name, _ in pieces]}, load_format="flattened_bucket"
        ),
    ):
        assert ask(foreign)[0]
        done, message = ask([*foreign, (own, torch.zeros(1))])
        assert not done and own in message and "/update_weights_from_disk" in message
    assert updater.update_weights_from_ipc(None)[0]
    assert updater.begin_weight_update() == "begun"  # all else is SGLang's
    assert served.loaded == ([], [])


def test_the_updater_overrides_what_sglang_calls() -> None:
    """Renamed in SGLang, an override would never be called."""
    from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater

    from sglang_dspark.serving.weight_update import DraftUpdater, TargetUpdater

    for ours in (TargetUpdater, DraftUpdater):
        for name, method in vars(ours).items():
            if not name.startswith("_") and callable(method):
                assert callable(getattr(WeightUpdater, name))
