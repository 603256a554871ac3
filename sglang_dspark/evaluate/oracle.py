"""The plain PyTorch reference as the judge: a pair of checkpoints on this machine, one prompt at a time.

Slow and exact: no server, no scheduling, float32. It is what a server's counts are held against, and it sees what a
server does not report, the confidence of every proposal.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sglang_dspark.checkpoints import read_config
from sglang_dspark.evaluate.answer import Answer, Settings
from sglang_dspark.evaluate.counts import Counts
from sglang_dspark.evaluate.samples import Samples
from sglang_dspark.reference import Generation, Round, from_checkpoint, generate, load_minimax_m3
from sglang_dspark.reference.target import HuggingFaceTarget

GENERATION_CONFIG = "generation_config.json"


class OracleJudge:
    """A target and its draft in plain PyTorch.

    Args:
        target: folder of a `MiniMaxM3SparseForCausalLM` checkpoint, with its tokenizer.
        draft: folder of its draft, in either layout.
        settings: of every prompt.

    Raises:
        ValueError: a checkpoint that cannot be loaded, with everything that is wrong with it.
    """

    def __init__(self, target: Path, draft: Path, settings: Settings) -> None:
        from transformers import AutoTokenizer

        self.ends = end_tokens(target)
        self.folders = {"model_path": str(target), "speculative_draft_model_path": str(draft)}
        self.settings = settings
        model = load_minimax_m3(target)
        tables = {
            "embed_tokens.weight": model.get_input_embeddings().weight.detach(),
            "lm_head.weight": model.get_output_embeddings().weight.detach(),
        }
        self.target, self.draft = HuggingFaceTarget(model), from_checkpoint(draft, tables)
        self.tokenizer = _quietly(AutoTokenizer.from_pretrained, target)
        if self.tokenizer.eos_token_id is not None:
            self.ends |= {self.tokenizer.eos_token_id}
        self._generator = torch.Generator().manual_seed(settings.seed)

    @property
    def gamma(self) -> int:
        """Proposals a round."""
        return self.draft.block_size

    def describe(self) -> dict[str, Any]:
        """The two folders, and what the reference computes in."""
        return {"kind": "reference", **self.folders, "device": "cpu", "dtype": "float32"}

    def ask(self, text: str) -> Answer:
        """Answer one prompt."""
        prompt, generation = self.generate(text)
        counts = Counts.of_rounds((one.kept for one in generation.rounds), self.gamma)
        return Answer(counts, len(prompt), len(generation.tokens))

    def generate(self, text: str) -> tuple[list[int], Generation]:
        """The prompt's tokens, and the whole generation after them."""
        prompt = self._encode(text)
        generation = generate(
            self.draft,
            self.target,
            prompt,
            max_new_tokens=self.settings.max_new_tokens,
            temperature=self.settings.temperature,
            end_token_ids=() if self.settings.ignore_end else self.ends,
            generator=self._generator,
        )
        return prompt, generation

    def samples(self, text: str) -> Samples:
        """The confidences of one prompt's rounds, and what was kept.

        Raises:
            ValueError: the draft has no confidence head.
        """
        if not self.draft.enable_confidence_head:
            raise ValueError(
                f"asked for the confidences of {self.folders['speculative_draft_model_path']}, found a draft without a "
                "confidence head: there is nothing to calibrate"
            )
        return samples_of(self.generate(text)[1].rounds, self.gamma)

    def _encode(self, text: str) -> list[int]:
        if not self.settings.chat:
            return list(self.tokenizer(text)["input_ids"])
        if not self.tokenizer.chat_template:
            raise ValueError(
                f"asked for chat prompts, found no chat template beside the tokenizer in {self.folders['model_path']}; "
                "ask with --raw"
            )
        message = [{"role": "user", "content": text}]
        rendered = self.tokenizer.apply_chat_template(
            message, tokenize=False, add_generation_prompt=True, **self.settings.template
        )
        return list(self.tokenizer(rendered, add_special_tokens=False)["input_ids"])


def _quietly(load: Any, folder: Path) -> Any:
    """A tokenizer without transformers' warning about the model type, which the tokenizer does not depend on."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        return load(folder)
    finally:
        logging.set_verbosity(before)


def samples_of(rounds: Sequence[Round], gamma: int) -> Samples:
    """The confidence logits [N, gamma] of rounds, and what each kept."""
    chances = torch.tensor([one.confidence for one in rounds], dtype=torch.float64).reshape(-1, gamma)
    kept = torch.tensor([one.kept for one in rounds], dtype=torch.int64)
    # A probability that rounding brought to 0 or 1 has no logit.
    return Samples(torch.logit(chances, eps=1e-7).float(), kept)


def end_tokens(folder: Path) -> frozenset[int]:
    """The tokens that end an answer by the checkpoint's config and generation config.

    Raises:
        CheckpointError: there is no readable config.json.
    """
    tables = [read_config(folder, "target")]
    if (folder / GENERATION_CONFIG).exists():
        tables.append(read_config(folder, "target", GENERATION_CONFIG))
    found: set[int] = set()
    for table in tables:
        ids = table.get("eos_token_id")
        found.update([] if ids is None else ids if isinstance(ids, list) else [ids])
    return frozenset(found)
