"""Measures how much of the demo draft's guesses its target accepts: writes docs/acceptance.md and docs/acceptance.png.

    python scripts/measure_acceptance.py            (needs matplotlib for the picture; --no-picture goes without)

Judge: tests/oracle, the float32 models that share no code with training or serving. Greedy decoding of prompts that
were not trained on: cut from held-out files of this machine's Python standard library, and the demo's own code prompts.
The Markov head is switched off by zeroing markov_w2; everything else stays as it was trained with the head on.
"""

import argparse
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from sglang_dspark.demo import build, code_prompts, trained  # noqa: E402
from sglang_dspark.demo.tokenizer import END  # noqa: E402
from sglang_dspark.evaluate.counts import Counts  # noqa: E402
from sglang_dspark.train import corpus  # noqa: E402
from sglang_dspark.train.picture import load_pyplot  # noqa: E402
from sglang_dspark.train.target_training import encode_texts  # noqa: E402
from tests.oracle.draft import Draft  # noqa: E402
from tests.oracle.generate import Result, speculative_greedy  # noqa: E402
from tests.oracle.target import Target  # noqa: E402

PROMPT_TOKENS = 64
# A small model's greedy text may end in a loop. One is counted from its second turn on, if it turns at least so often.
LONGEST_LOOP, FEWEST_TURNS = 32, 3


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    text: str
    markov: bool
    accepted: list[int]  # tokens a round, the bonus token included
    accepted_before_loops: list[int]

    @property
    def counts(self) -> Counts:
        # The last token of a round is the target's own: a round of n tokens kept n - 1 proposals.
        return Counts.of_rounds((count - 1 for count in self.accepted), trained.SPEC.block_size)

    @property
    def length(self) -> float:
        return sum(self.accepted) / len(self.accepted)

    @property
    def length_before_loops(self) -> float:
        return sum(self.accepted_before_loops) / len(self.accepted_before_loops)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=40, help="of each kind (default: %(default)s)")
    parser.add_argument("--new-tokens", type=int, default=128, help="a prompt (default: %(default)s)")
    parser.add_argument("--no-picture", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        pair = build(Path(folder), spec=trained.SPEC)
        target = Target(pair.target)
        texts = {"held-out files": held_out_prompts(arguments.prompts), "code prompts": own_prompts(arguments.prompts)}
        rows = []
        for markov in (True, False):
            draft = Draft(pair.draft, target)
            if not markov:
                draft.weights["markov_head.markov_w2.weight"].zero_()
            for text, prompts in texts.items():
                rows.append(measure(text, markov, target, draft, prompts, arguments.new_tokens))
                print(f"{text}, Markov head {'on' if markov else 'off'}: {rows[-1].length:.2f}", flush=True)
    (ROOT / "docs" / "acceptance.md").write_text(page(rows, arguments))
    if not arguments.no_picture:
        draw(rows, ROOT / "docs" / "acceptance.png")


def held_out_prompts(count: int) -> list[list[int]]:
    """Evenly spaced pieces of the held-out files."""
    stream = encode_texts(trained.read(trained.SPEC).tokenizer, corpus.read_texts(held_out=True), END)
    starts = torch.linspace(0, len(stream) - PROMPT_TOKENS - 1, count).long().tolist()
    return [stream[start : start + PROMPT_TOKENS].tolist() for start in starts]


def own_prompts(count: int) -> list[list[int]]:
    tokenizer = trained.read(trained.SPEC).tokenizer
    return [tokenizer.encode(prompt).ids for prompt in code_prompts(count)]


def measure(
    text: str, markov: bool, target: Target, draft: Draft, prompts: Sequence[list[int]], new_tokens: int
) -> Row:
    row = Row(text, markov, [], [])
    for prompt in prompts:
        result = speculative_greedy(target, draft, prompt, new_tokens)
        looping = loop_start(result.tokens)
        position = 1  # the first token is the prompt's own pass
        for accepted in rounds_before_end(result):
            row.accepted.append(accepted)
            if position < looping:
                row.accepted_before_loops.append(accepted)
            position += accepted
    return row


def rounds_before_end(result: Result) -> list[int]:
    """The rounds until the target ends its text."""
    end = result.tokens.index(END) if END in result.tokens else len(result.tokens)
    rounds, position = [], 1
    for accepted in result.accepted_per_round:
        if position < end:
            rounds.append(accepted)
        position += accepted
    return rounds


def loop_start(tokens: Sequence[int]) -> int:
    """Where the text has turned once in the loop that it ends in; behind its end where it ends in none."""
    starts = [len(tokens)]
    for period in range(1, LONGEST_LOOP + 1):
        start = len(tokens)
        while start > period and tokens[start - 1] == tokens[start - 1 - period]:
            start -= 1
        if len(tokens) - start >= FEWEST_TURNS * period:
            starts.append(start)
    return min(starts)


def page(rows: Sequence[Row], arguments: argparse.Namespace) -> str:
    block = trained.SPEC.block_size
    lines = [
        "# How much of the demo draft's guesses is accepted",
        "",
        "Generated by `python scripts/measure_acceptance.py`; do not edit. Greedy decoding, block of "
        f"{block}, {arguments.prompts} prompts of each kind,",
        f"{arguments.new_tokens} tokens each, judged by the float32 oracle in tests/oracle. Nothing of the prompts was",
        "trained on: pieces of the standard library's held-out files, and `sglang_dspark.demo.code_prompts`.",
        "The accepted length counts the tokens of a verify round, the target's own bonus token included, as SGLang's",
        f"`accept len` does: 1 is no gain, {block + 1} is the most.",
        "",
        "A model this small loops when it decodes greedily, and loops are easily guessed; the second column leaves out",
        "the rounds from a loop's second turn on.",
        "",
        "With the head off, markov_w2 is zero and the rest stays as it was trained with the head on: what the head",
        "does for this draft, not how good a draft without one could be. Few of its rounds get past position 3, so its",
        "acceptance there says little.",
        "",
        "| prompts | Markov head | accepted length | outside loops | rounds | outside loops |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        lines.append(
            f"| {row.text} | {switch(row)} | **{row.length:.2f}** | {row.length_before_loops:.2f} "
            f"| {len(row.accepted)} | {len(row.accepted_before_loops)} |"
        )
    positions = range(1, block + 1)
    lines += ["", "Acceptance by position, where every proposal before it was accepted:", ""]
    lines += [f"| prompts | Markov head | {' | '.join(map(str, positions))} |", "|---|---|" + "--:|" * block]
    lines += [f"| {row.text} | {switch(row)} | " + " | ".join(map(share, row.counts.acceptance)) + " |" for row in rows]
    lines += ["", "Share of the rounds that kept at least so many proposals:", ""]
    lines += [f"| prompts | Markov head | {' | '.join(map(str, positions))} |", "|---|---|" + "--:|" * block]
    lines += [f"| {row.text} | {switch(row)} | " + " | ".join(map(share, row.counts.survival)) + " |" for row in rows]
    lines += [
        "",
        "![Acceptance by position](acceptance.png)",
        "",
        f"Measured with Python {platform.python_version()} (whose library the held-out files are) and torch "
        f"{torch.__version__}.",
        "The pair: [training.md](training.md).",
        "",
    ]
    return "\n".join(lines)


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def switch(row: Row) -> str:
    return "on" if row.markov else "off"


def draw(rows: Sequence[Row], path: Path) -> None:
    pyplot = load_pyplot()
    block = trained.SPEC.block_size
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained", sharex=True, sharey=True)
    colours = {text: colour for text, colour in zip(dict.fromkeys(row.text for row in rows), ("C0", "C1"), strict=True)}
    for row in rows:
        style = {"color": colours[row.text], "linestyle": "-" if row.markov else ":", "marker": "o"}
        label = f"{row.text}, Markov head {switch(row)} ({row.length:.2f})"
        axes[0].plot(range(1, block + 1), row.counts.acceptance, label=label, **style)
        axes[1].plot(range(1, block + 1), row.counts.survival, label=label, **style)
    axes[0].set_title("accepted, where all before it were")
    axes[1].set_title("share of rounds that keep at least so many")
    for axis in axes:
        axis.set_xlabel("position in the block")
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize="small", title="in brackets: accepted length")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
