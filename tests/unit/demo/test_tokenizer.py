"""The tokenizer reads back what it wrote, keeps its special tokens apart, and the prompts are what tests count on."""

import json

import pytest
import tokenizers

from sglang_dspark.demo import DemoSpec, build, prompts
from sglang_dspark.demo.corpus import TEXT


@pytest.fixture(scope="module")
def tokenizer(automodel):
    return tokenizers.Tokenizer.from_file(str(automodel.target / "tokenizer.json"))


@pytest.mark.parametrize("text", [TEXT, "7 x 8 = 56\n\tdef f(x):", "naïve — 河は流れる 🚣", " two  spaces "])
def test_any_text_survives(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_vocabulary_is_full_and_the_corpus_is_compressed(tokenizer):
    assert tokenizer.get_vocab_size() == 512
    assert len(tokenizer.encode(TEXT).ids) < len(TEXT) / 2


def test_the_mask_is_one_token_that_no_text_contains(tokenizer, automodel):
    mask = json.loads((automodel.draft / "config.json").read_text())["mask_token_id"]
    assert tokenizer.id_to_token(mask) == "<|mask|>"
    assert mask not in tokenizer.encode(TEXT + " ".join(prompts(128))).ids


def test_settings_name_the_end_and_a_chat_template(automodel):
    settings = json.loads((automodel.target / "tokenizer_config.json").read_text())
    end = json.loads((automodel.target / "config.json").read_text())["eos_token_id"]
    tokenizer = tokenizers.Tokenizer.from_file(str(automodel.target / "tokenizer.json"))
    assert tokenizer.token_to_id(settings["eos_token"]) == end
    jinja2 = pytest.importorskip("jinja2")
    chat = jinja2.Template(settings["chat_template"]).render(
        messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}],
        add_generation_prompt=True,
    )
    assert chat == "<|begin|><|user|>Hi<|end|><|assistant|>Yes<|end|><|assistant|>"


def test_a_tiny_pair_has_one_word_a_token(tmp_path):
    pair = build(tmp_path, spec=DemoSpec.tiny(8))
    tokenizer = tokenizers.Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    assert tokenizer.encode("t3 t0 t7").ids == [3, 0, 7]
    assert json.loads((pair.draft / "config.json").read_text())["mask_token_id"] == 7


def test_a_vocabulary_that_the_corpus_cannot_fill_is_refused(tmp_path):
    with pytest.raises(ValueError, match="asked for a tokenizer of 4096 tokens"):
        build(tmp_path, spec=DemoSpec.text(vocab_size=4096))


def test_prompts_are_many_different_and_the_same_each_time(tokenizer):
    found = prompts(128)
    assert len(set(found)) == 128 and found == prompts(128) and found[:64] == prompts(64)
    lengths = [len(tokenizer.encode(prompt).ids) for prompt in found[:64]]
    assert min(lengths) <= 3 and sum(length > 200 for length in lengths) >= 8 and max(lengths) < 512


def test_some_prompts_share_a_long_start(tokenizer):
    """Long enough for a radix cache hit in the middle of a prompt."""
    ids = [tokenizer.encode(prompt).ids for prompt in prompts(64)]
    shared = [sum(1 for other in ids if other[:100] == one[:100]) for one in ids if len(one) > 100]
    assert shared.count(8) == 16
