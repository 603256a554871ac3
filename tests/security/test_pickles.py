"""No pickle is ever loaded: not by our code, not by SGLang's loader on the way to a draft."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

import sglang_dspark

from .payloads import hostile_pickle, pair, read_everything

ROOT = Path(sglang_dspark.__file__).parents[1]
SOURCES = sorted(path for folder in ("sglang_dspark", "scripts") for path in (ROOT / folder).rglob("*.py"))
PICKLERS = ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "pickletools")
PICKLES = ("pytorch_model.bin", "model.pt", "head.pt", "training_args.bin", "state.pkl", "optimizer.pth", "x.ckpt")


def offences(source: str) -> list[str]:
    """Calls and imports that could read a pickle, or run text as code."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [f"imports {name}" for name in names if name.split(".")[0] in PICKLERS]
        if not isinstance(node, ast.Call):
            continue
        called, keywords = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
        if called.endswith("torch.load") and keywords.get("weights_only") != "True":
            found.append(f"{called} without weights_only=True")
        if called in ("eval", "exec", "compile", "yaml.load", "yaml.unsafe_load", "os.system", "os.popen"):
            found.append(f"{called}()")
        if "True" in (keywords.get("allow_pickle"), keywords.get("shell"), keywords.get("trust_remote_code")):
            found.append(f"{called}() with {keywords}")
    return found


def test_no_source_reads_pickles_or_runs_text() -> None:
    assert len(SOURCES) > 100
    assert {str(path.relative_to(ROOT)): found for path in SOURCES if (found := offences(path.read_text()))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from dill import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "eval(text)",
        "subprocess.run(text, shell=True)",
        "AutoConfig.from_pretrained(path, trust_remote_code=True)",
    ],
)
def test_the_search_finds_them(source: str) -> None:
    """A search that finds nothing would pass the test above."""
    assert offences(source)
    assert not offences("torch.load(path, weights_only=True)\nmodel.eval()")


@pytest.mark.parametrize("name", PICKLES)
def test_a_draft_of_pickles_alone_is_refused_unread(tmp_path: Path, name: str) -> None:
    """SGLang's loader would take *.bin, then *.pt, where it finds no safetensors."""
    draft, target = pair(tmp_path)
    (draft / "model.safetensors").unlink()
    (draft / name).write_bytes(hostile_pickle(tmp_path / "marker"))
    refusals = read_everything(draft, target, tmp_path / "converted")
    assert len(refusals) == 3 and all("save the draft as safetensors" in refusal for refusal in refusals)
    assert not (tmp_path / "marker").exists()


def test_pickles_beside_the_weights_are_not_opened_and_not_copied(tmp_path: Path) -> None:
    draft, target = pair(tmp_path)
    for name in PICKLES:
        (draft / name).write_bytes(hostile_pickle(tmp_path / "marker"))
    assert read_everything(draft, target, tmp_path / "converted") == []
    assert not (tmp_path / "marker").exists()
    assert sorted(path.name for path in (tmp_path / "converted").iterdir()) == [
        *("config.json", "model.safetensors", "tokenizer.json")
    ]


def test_an_index_of_pickles_is_refused(tmp_path: Path) -> None:
    draft, target = pair(tmp_path)
    (draft / "pytorch_model.bin").write_bytes(hostile_pickle(tmp_path / "marker"))
    (draft / "model.safetensors.index.json").write_text('{"weight_map": {"fc.weight": "pytorch_model.bin"}}')
    refusals = read_everything(draft, target, tmp_path / "converted")
    assert len(refusals) == 3 and all("asked for *.safetensors files" in refusal for refusal in refusals)
    assert not (tmp_path / "marker").exists()


def test_the_payload_works(tmp_path: Path) -> None:
    """Or its absence would prove nothing."""
    import pickle

    pickle.loads(hostile_pickle(tmp_path / "marker"))
    assert (tmp_path / "marker").exists()


def test_sglang_s_loader_never_falls_back_for_our_draft() -> None:
    """It reads this attribute of the model class; without it, *.pt is tried whatever the load format."""
    from sglang.srt.model_loader.loader import DefaultModelLoader

    from sglang_dspark.models.minimax_m3_dspark import DSparkMiniMaxDraftModel

    config = SimpleNamespace(model_path="draft", revision=None)
    assert DefaultModelLoader.Source.init_new(config, SimpleNamespace()).fall_back_to_pt
    assert not DefaultModelLoader.Source.init_new(config, DSparkMiniMaxDraftModel).fall_back_to_pt
