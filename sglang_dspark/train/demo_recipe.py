"""How the demo's trained pair came to be: tokenizer, target, the target's outputs, draft. The numbers are here.

`scripts/train_demo.py` runs it. Each stage leaves its result in the work folder and is skipped where that is there; a
stage that was interrupted goes on where its last state was saved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import save
from tokenizers import decoders, models, pre_tokenizers, trainers

from sglang_dspark.demo import trained
from sglang_dspark.demo.layouts import draft_checkpoint
from sglang_dspark.demo.target import target_config
from sglang_dspark.demo.tokenizer import END, SPECIAL_TOKENS
from sglang_dspark.reference import MiniMaxM3DSparkModel
from sglang_dspark.train import corpus, digest_file
from sglang_dspark.train.continuations import Recipe, cache_features
from sglang_dspark.train.draft_training import DraftObjective, new_draft
from sglang_dspark.train.feature_cache import FeatureCache
from sglang_dspark.train.loop import LoopSettings, Progress, train
from sglang_dspark.train.target_files import checkpoint_tensors, load_checkpoint_tensors
from sglang_dspark.train.target_model import TextModel
from sglang_dspark.train.target_training import TargetObjective, encode_texts
from sglang_dspark.train.teachers import MiniMaxM3Teacher

SEED = 21
TARGET_RUN = LoopSettings(steps=1300, learning_rate=8e-3, seed=SEED)
TARGET_BATCH, TARGET_WINDOW = 8, 256
# Mostly greedy: the demo is served at temperature 0. The warm share shows the draft states off the greedy path.
OUTPUTS = Recipe(
    sequences=3072, prompt_tokens=64, new_tokens=128, temperatures=(0.0, 0.0, 0.0, 0.7), batch=128, seed=SEED
)
DRAFT_RUN = LoopSettings(steps=1800, learning_rate=6e-3, seed=SEED)
DRAFT_BATCH, DRAFT_ANCHORS = 8, 16

Say = Callable[[str], None]


def make_pair(work: Path, say: Say, progress: Callable[[str], Progress]) -> None:
    """Every stage, and the package's files at the end.

    Args:
        work: keeps what a stage leaves for the next one.
        say: told what begins.
        progress: makes a progress display for a stage.
    """
    work.mkdir(parents=True, exist_ok=True)
    say("tokenizer and text")
    tokenizer = make_tokenizer(work)
    stream = encode_texts(tokenizer, corpus.read_texts(held_out=False), END)
    say(f"target: {TARGET_RUN.steps} steps on {stream.numel()} tokens")
    target = train_target(stream, work, progress("target"))
    say(f"the target's outputs: {OUTPUTS.sequences} sequences")
    cache = make_features(target, stream, work, progress("outputs"))
    say(f"draft: {DRAFT_RUN.steps} steps")
    draft = train_draft(target, cache, work, progress("draft"))
    publish(tokenizer, target, draft)
    say(f"written to {trained.FOLDER}")


def make_tokenizer(work: Path) -> tokenizers.Tokenizer:
    """Byte-level BPE of the training text; any text can be encoded."""
    path = work / "tokenizer.json"
    if path.exists():
        return tokenizers.Tokenizer.from_file(str(path))
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=trained.SPEC.vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.read_texts(held_out=False), trainer=trainer)
    digest_file.publish_bytes(path, tokenizer.to_str(pretty=False).encode())
    return tokenizer


def train_target(stream: torch.Tensor, work: Path, progress: Progress) -> MiniMaxM3Teacher:
    """The target, rounded to bf16 as it is published: its outputs are then the served model's."""
    model = TextModel(target_config(trained.SPEC))
    model.initialize(SEED)
    objective = TargetObjective(model, stream, TARGET_BATCH, TARGET_WINDOW)
    train(objective, TARGET_RUN, work / "target_run", progress=progress)
    load_checkpoint_tensors(model, checkpoint_tensors(model), "of this run")
    return MiniMaxM3Teacher(model.eval(), _fingerprint(model))


def make_features(target: MiniMaxM3Teacher, stream: torch.Tensor, work: Path, progress: Progress) -> FeatureCache:
    """The target's continuations of the training text."""
    folder = work / f"features-{target.fingerprint}"
    if not folder.exists():
        cache_features(
            target,
            stream,
            OUTPUTS,
            trained.SPEC.target_layer_ids,
            folder,
            end_token=END,
            progress=lambda done, total: progress(done - 1, total, {}),
        )
    return FeatureCache(folder)


def train_draft(target: MiniMaxM3Teacher, cache: FeatureCache, work: Path, progress: Progress) -> MiniMaxM3DSparkModel:
    """The draft."""
    # An empty table of tensors: only the config is wanted here.
    config = draft_checkpoint("released", trained.SPEC, target_config(trained.SPEC), {}, {})[0]
    draft = new_draft(config | {"num_anchors": DRAFT_ANCHORS}, target, SEED)
    objective = DraftObjective(draft, cache, DRAFT_BATCH, optimizer="muon")
    train(objective, DRAFT_RUN, work / "draft_run", progress=progress)
    return draft


def publish(tokenizer: tokenizers.Tokenizer, target: MiniMaxM3Teacher, draft: MiniMaxM3DSparkModel) -> None:
    """Write the package's files, and their digests last: until then the old ones or none are valid."""
    own = {
        name: tensor.detach().bfloat16().contiguous()
        for name, tensor in draft.state_dict().items()
        if name not in ("embed_tokens.weight", "lm_head.weight")
    }
    files = {
        trained.TARGET_NAME: save(checkpoint_tensors(target.model), {"format": "pt"}),
        trained.DRAFT_NAME: save(own, {"format": "pt"}),
        trained.TOKENIZER_NAME: tokenizer.to_str(pretty=False).encode(),
    }
    for name, content in files.items():
        digest_file.publish_bytes(trained.FOLDER / name, content)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    digest_file.publish_bytes(trained.FOLDER / trained.DIGESTS_NAME, (json.dumps(digests, indent=2) + "\n").encode())


def _fingerprint(model: TextModel) -> str:
    return hashlib.sha256(save(checkpoint_tensors(model))).hexdigest()[:16]
