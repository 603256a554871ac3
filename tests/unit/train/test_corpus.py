"""The training text: this machine's own, and never the part that is measured on."""

from pathlib import Path

import pytest

from sglang_dspark.train import corpus


def test_the_standard_library_is_there_and_split():
    """Regime: the running interpreter. About one file in 20 is held out, and no file is on both sides."""
    files = corpus.source_files()
    held_out = [path for path in files if corpus.is_held_out(path)]
    assert len(files) > 300
    assert 0.02 < len(held_out) / len(files) < 0.09
    assert not [path for path in files if {"test", "site-packages"} & set(path.parts)]


def test_a_file_s_side_follows_from_its_path_alone(tmp_path: Path):
    for root in (tmp_path / "a", tmp_path / "b"):
        for number in range(60):
            path = root / "package" / f"module{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{root.name} {number}")
    sides = [{p.name for p in corpus.source_files(root) if corpus.is_held_out(p, root)} for root in tmp_path.iterdir()]
    assert sides[0] == sides[1] and sides[0]
    texts = corpus.read_texts(True, tmp_path / "a"), corpus.read_texts(False, tmp_path / "a")
    assert len(texts[0]) == len(sides[0]) and len(texts[1]) == 60 - len(sides[0])


def test_an_interpreter_without_sources_is_an_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="found none"):
        corpus.source_files(tmp_path)
