"""`sglang-dspark train`: teach a draft to guess its target, on this machine.

Three stages, each kept in OUT and skipped where it is done: the target continues prompts cut from the text and its
features are cached (OUT/features), the draft learns from them (OUT/run, resumed to the last bit when started again),
and the result is written in AutoModel's layout (OUT/draft), ready to be served.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

EPILOG = """\
example, the demo's target and the Python sources of this machine:
  sglang-dspark train "$(sglang-dspark demo --path)/target" my-draft --mask-token 3 --steps 300

A draft for a large target is trained with NVIDIA AutoModel; docs/training.md says how the two fit together.
"""


def add_parser(commands: Any) -> None:
    """Add the subcommand to the parser's `commands`."""
    parser = commands.add_parser(
        "train",
        help="train a DSpark draft for a target, or train one further",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("target", type=Path, help="the target's checkpoint folder, with its tokenizer")
    add("out", type=Path, metavar="OUT", help="folder for everything that comes out")
    add("--text", type=Path, nargs="+", help="text files to cut prompts from (default: Python's standard library)")
    add("--init", type=Path, help="draft to train further; its own sizes hold then")
    lessons = parser.add_argument_group("the target's outputs")
    lessons.add_argument("--sequences", type=int, default=1024, help="how many (default: %(default)s)")
    lessons.add_argument("--prompt-tokens", type=int, default=64, help="of each prompt (default: %(default)s)")
    lessons.add_argument("--new-tokens", type=int, default=160, help="the target adds (default: %(default)s)")
    lessons.add_argument(
        "--temperatures", type=float, nargs="+", default=[0.0, 0.0, 0.0, 0.7],
        help="taken in turn by batches of sequences; 0 is greedy (default: %(default)s)",
    )  # fmt: skip
    lessons.add_argument("--generate-batch", type=int, default=64, help="prompts at once (default: %(default)s)")
    sizes = parser.add_argument_group("the draft")
    sizes.add_argument(
        "--mask-token", type=int, help="id that fills a block behind its anchor (default: the tokenizer's)"
    )
    sizes.add_argument("--target-layers", type=int, nargs="+", help="layers it reads (default: three, evenly spread)")
    sizes.add_argument("--layers", type=int, default=2, help="its depth (default: %(default)s)")
    sizes.add_argument("--block-size", type=int, default=7, help="tokens it drafts at once (default: %(default)s)")
    sizes.add_argument("--mlp-width", type=int, default=0, help="of its MLP (default: twice the hidden size)")
    sizes.add_argument("--markov-rank", type=int, default=64, help="of the Markov head (default: %(default)s)")
    sizes.add_argument("--markov-head", choices=("vanilla", "gated", "rnn"), default="vanilla", help="its kind")
    course = parser.add_argument_group("the course")
    course.add_argument("--steps", type=int, default=1000, help="optimizer steps (default: %(default)s)")
    course.add_argument("--batch", type=int, default=8, help="sequences a micro-batch (default: %(default)s)")
    course.add_argument("--accumulate", type=int, default=1, help="micro-batches a step (default: %(default)s)")
    course.add_argument("--anchors", type=int, default=24, help="blocks a sequence (default: %(default)s)")
    course.add_argument("--learning-rate", type=float, default=2e-3, help="highest rate (default: %(default)s)")
    course.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw", help="muon: for short runs")
    course.add_argument("--seed", type=int, default=0, help="of weights, prompts and batches (default: %(default)s)")
    course.add_argument("--save-every", type=int, default=100, help="steps between states (default: %(default)s)")
    course.add_argument("--stop-after", type=int, help="stop at this step; the same command goes on from there")
    course.add_argument("--picture", action="store_true", help="also draw OUT/training.png (needs matplotlib)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train; 0 when the draft is written."""
    from sglang_dspark.reference import save_checkpoint
    from sglang_dspark.train.draft_training import DraftObjective
    from sglang_dspark.train.loop import METRICS_NAME, LoopSettings, train
    from sglang_dspark.train.metrics import read_metrics
    from sglang_dspark.train.picture import draw_run, load_pyplot
    from sglang_dspark.train.teachers import load_teacher

    if arguments.picture:
        load_pyplot()  # before the hours of training, not after
    settings = LoopSettings(
        steps=arguments.steps,
        learning_rate=arguments.learning_rate,
        accumulate=arguments.accumulate,
        seed=arguments.seed,
    )
    target = load_teacher(arguments.target)
    draft = _draft(arguments, target)
    cache = _features(arguments, target, draft)
    objective = DraftObjective(draft, cache, arguments.batch, optimizer=arguments.optimizer)
    step = train(
        objective,
        settings,
        arguments.out / "run",
        save_every=arguments.save_every,
        stop_after=arguments.stop_after,
        progress=progress_bar("training"),
    )
    metrics = read_metrics(arguments.out / "run" / METRICS_NAME)
    if arguments.picture:
        draw_run(metrics, arguments.out / "training.png")
    if step < settings.steps:
        print(f"Stopped after step {step} of {settings.steps}; the same command without --stop-after goes on.")
        return 0
    save_checkpoint(draft, arguments.out / "draft")
    _report(metrics, arguments.out / "draft")
    return 0


def _draft(arguments: argparse.Namespace, target: Any) -> Any:
    from sglang_dspark.reference import from_checkpoint
    from sglang_dspark.train.draft_config import DraftChoices, new_draft_config, spread_layers
    from sglang_dspark.train.draft_training import new_draft

    if arguments.init:
        tables = {"embed_tokens.weight": target.embed_tokens.weight, "lm_head.weight": target.lm_head.weight}
        draft = from_checkpoint(arguments.init, {name: table.detach() for name, table in tables.items()})
        draft.num_anchors = arguments.anchors
        return draft
    layers = arguments.target_layers or spread_layers(int(target.config["num_hidden_layers"]))
    choices = DraftChoices(
        mask_token_id=_mask_token(arguments),
        target_layer_ids=tuple(layers),
        layers=arguments.layers,
        block_size=arguments.block_size,
        mlp_width=arguments.mlp_width,
        markov_rank=arguments.markov_rank,
        markov_head_type=arguments.markov_head,
        num_anchors=arguments.anchors,
    )
    return new_draft(new_draft_config(target.config, choices), target, arguments.seed)


def _features(arguments: argparse.Namespace, target: Any, draft: Any) -> Any:
    from sglang_dspark.train.continuations import Recipe, cache_features, facts_of
    from sglang_dspark.train.feature_cache import FeatureCache

    recipe = Recipe(
        sequences=arguments.sequences,
        prompt_tokens=arguments.prompt_tokens,
        new_tokens=arguments.new_tokens,
        temperatures=tuple(arguments.temperatures),
        batch=arguments.generate_batch,
        seed=arguments.seed,
    )
    end = target.config.get("eos_token_id")
    stream = _stream(arguments, end if isinstance(end, int) else None)
    folder = arguments.out / "features"
    if not folder.exists():
        cache_features(
            target,
            stream,
            recipe,
            draft.target_layer_ids,
            folder,
            end_token=end if isinstance(end, int) else None,
            progress=_count_bar("the target's outputs"),
        )
    cache = FeatureCache(folder)
    cache.require(facts_of(target, stream, recipe, draft.target_layer_ids))
    return cache


def _stream(arguments: argparse.Namespace, end: int | None) -> Any:
    from sglang_dspark.train import corpus
    from sglang_dspark.train.target_training import encode_texts

    texts = [path.read_text(encoding="utf-8") for path in arguments.text or ()] or corpus.read_texts(held_out=False)
    return encode_texts(_tokenizer(arguments.target), texts, end)


def _tokenizer(folder: Path) -> Any:
    import tokenizers

    path = folder / "tokenizer.json"
    if not path.exists():
        raise FileNotFoundError(f"asked for the target's tokenizer, found no {path}: save the fast tokenizer there")
    return tokenizers.Tokenizer.from_file(str(path))


def _mask_token(arguments: argparse.Namespace) -> int:
    if arguments.mask_token is not None:
        return int(arguments.mask_token)
    found = _tokenizer(arguments.target).token_to_id("<|mask|>")
    if found is None:
        raise ValueError(
            "asked for the tokenizer's <|mask|> token, found none: name an id that no text has with --mask-token"
        )
    return int(found)


def progress_bar(title: str, first: int | None = None) -> Callable[[int, int, Mapping[str, float]], None]:
    """A bar on the terminal's error stream that shows the loss and the expected accepted length.

    Args:
        title: stands in front of it.
        first: where counting begins; by default at the first step it is told, which a resumed run starts at.
    """
    from tqdm import tqdm

    bar: Any = None

    def show(step: int, steps: int, values: Mapping[str, float]) -> None:
        nonlocal bar
        start = step if first is None else first
        bar = bar or tqdm(total=steps, initial=start, desc=title, file=sys.stderr, mininterval=1.0)
        shown = {name: f"{values[name]:.3f}" for name in ("loss", "accepted_length") if name in values}
        bar.set_postfix(shown, refresh=False)
        bar.update(step + 1 - bar.n)
        if step + 1 == steps:
            bar.close()

    return show


def _count_bar(title: str) -> Callable[[int, int], None]:
    show = progress_bar(title, first=0)
    return lambda done, total: show(done - 1, total, {})


def _report(metrics: list[dict[str, float]], draft: Path) -> None:
    last = metrics[-50:]
    lengths = [row["accepted_length"] for row in last if "accepted_length" in row]
    if lengths:
        print(
            f"The last {len(last)} steps: expected accepted length {sum(lengths) / len(lengths):.2f} at temperature 1 "
            "on the training text, bonus token included."
        )
    print(f"The draft is {draft}: serve it with --speculative-draft-model-path.")
