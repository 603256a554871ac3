"""`sglang-dspark train` end to end on a toy target: three stages, each kept, stopped and resumed."""

import argparse
import json
import shutil

import pytest
import tokenizers

from sglang_dspark.cli import train as command
from sglang_dspark.reference import from_checkpoint


def run(*arguments):
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["train", *map(str, arguments)])
    return parsed.run(parsed)


@pytest.fixture
def small(pair, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"t{(step * step) % 11}" for step in range(300)))
    sizes = "--sequences 8 --prompt-tokens 5 --new-tokens 12 --layers 1 --block-size 4 --markov-rank 8 --mask-token 11"
    course = "--steps 6 --batch 2 --anchors 4 --save-every 2"
    return [pair.target, tmp_path / "out", "--text", text, *sizes.split(), *course.split()]


def test_a_draft_comes_out(small, tmp_path, capsys):
    assert run(*small) == 0
    draft = from_checkpoint(tmp_path / "out" / "draft")
    assert draft.block_size == 4 and draft.target_layer_ids == (0, 1, 2) and draft.mask_token_id == 11
    rows = (tmp_path / "out" / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == list(range(6))
    assert "expected accepted length" in capsys.readouterr().out


def test_stopped_and_resumed_it_writes_the_same_draft(small, tmp_path, capsys):
    assert run(*small) == 0
    whole = (tmp_path / "out" / "draft" / "model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "out")
    assert run(*small, "--stop-after", 3) == 0
    assert "Stopped after step 3 of 6" in capsys.readouterr().out
    assert not (tmp_path / "out" / "draft").exists()
    assert run(*small) == 0
    assert (tmp_path / "out" / "draft" / "model.safetensors").read_bytes() == whole


def test_an_existing_draft_is_trained_further(small, tmp_path):
    assert run(*small) == 0
    arguments = [small[0], tmp_path / "further", *small[2:]]
    assert run(*arguments, "--init", tmp_path / "out" / "draft", "--learning-rate", "0") == 0
    before, after = (from_checkpoint(tmp_path / name / "draft").state_dict() for name in ("out", "further"))
    assert all((before[name] == after[name]).all() for name in before)


def test_features_of_another_recipe_are_refused(small):
    assert run(*small, "--stop-after", 1) == 0
    with pytest.raises(ValueError, match="recipe: asked for"):
        run(*small, "--new-tokens", 13)


def test_a_tokenizer_without_a_mask_needs_the_option(small):
    words = [argument for argument in small if argument not in ("--mask-token", "11")]
    assert tokenizers.Tokenizer.from_file(str(small[0] / "tokenizer.json")).token_to_id("<|mask|>") is None
    with pytest.raises(ValueError, match="--mask-token"):
        run(*words)
