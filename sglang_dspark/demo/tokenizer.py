"""The demo's tokenizer: byte-level BPE trained on the corpus, or one word a token for the tiny pair."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from sglang_dspark.demo.corpus import TEXT
from sglang_dspark.demo.spec import DemoSpec

# Ids 0 to 5 of the text pair. The mask is a token of its own: no text encodes to it and the target never says it.
SPECIAL_TOKENS = ("<|pad|>", "<|begin|>", "<|end|>", "<|mask|>", "<|user|>", "<|assistant|>")
PAD, BEGIN, END, MASK = 0, 1, 2, 3

CHAT_TEMPLATE = (
    "{{ '<|begin|>' }}{% for message in messages %}"
    "{{ ('<|assistant|>' if message['role'] == 'assistant' else '<|user|>') + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_tokenizer(spec: DemoSpec) -> tokenizers.Tokenizer:
    """The tokenizer of the pair this spec describes."""
    return _words(spec) if spec.name == "tiny" else _byte_level(spec)


def mask_token_id(spec: DemoSpec) -> int:
    """The token that fills a draft block behind its anchor."""
    return spec.vocab_size - 1 if spec.name == "tiny" else MASK


def special_token_ids(spec: DemoSpec) -> tuple[int, ...]:
    """The tokens that the target never produces."""
    return (spec.vocab_size - 1,) if spec.name == "tiny" else tuple(range(len(SPECIAL_TOKENS)))


def write_tokenizer(folder: Path, spec: DemoSpec, tokenizer: tokenizers.Tokenizer) -> None:
    """Write tokenizer.json and tokenizer_config.json as transformers reads them."""
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False), encoding="utf-8")
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": spec.max_position_embeddings,
    }
    if spec.name != "tiny":
        settings |= {
            "pad_token": SPECIAL_TOKENS[PAD],
            "bos_token": SPECIAL_TOKENS[BEGIN],
            "eos_token": SPECIAL_TOKENS[END],
            "mask_token": SPECIAL_TOKENS[MASK],
            "chat_template": CHAT_TEMPLATE,
        }
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _byte_level(spec: DemoSpec) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer=trainer)
    found = tokenizer.get_vocab_size()
    if found != spec.vocab_size:
        raise ValueError(
            f"asked for a tokenizer of {spec.vocab_size} tokens, the corpus gives {found}: take a vocab_size between "
            f"{256 + len(SPECIAL_TOKENS)} and what the corpus allows, or the tiny preset"
        )
    return tokenizer


def _words(spec: DemoSpec) -> tokenizers.Tokenizer:
    vocabulary = {f"t{index}": index for index in range(spec.vocab_size)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer
