"""What a training framework writes is what the server serves, in either layout, round by round as the reference has it.

The pair is the shipped one, trained on its target's own outputs; the reference runs transformers' MiniMax-M3 and our
plain draft, none of SGLang's code.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from sglang_dspark.cli import main
from sglang_dspark.demo import DemoPair, ensure
from sglang_dspark.demo.code_prompts import code_prompts
from sglang_dspark.reference import Generation, from_checkpoint, generate, load_minimax_m3
from tests.e2e.serving import NEW_TOKENS, Answer, accepted_length, ask_all, serve

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def trained() -> DemoPair:
    return ensure()


@pytest.fixture(scope="module")
def held_out() -> list[str]:
    """Beginnings of files that neither model was trained on."""
    return code_prompts(64)


@pytest.fixture(scope="module")
def reference(trained: DemoPair, held_out: list[str]) -> list[Generation]:
    tokenizer = Tokenizer.from_file(str(trained.target / "tokenizer.json"))
    target = load_minimax_m3(trained.target)
    draft = from_checkpoint(trained.draft).float()
    ids = [tokenizer.encode(text).ids for text in held_out]
    with torch.inference_mode():
        return [generate(draft, target, each, max_new_tokens=NEW_TOKENS) for each in ids]


@pytest.fixture(scope="module")
def served(trained: DemoPair, held_out: list[str], logs: Path) -> list[Answer]:
    with serve(trained, logs / "trained.log") as server:
        return ask_all(server, held_out)


def test_every_round(served: list[Answer], reference: list[Generation]) -> None:
    """64 held-out prompts: the tokens, and how many of the draft's each verify round kept."""
    assert [answer.tokens for answer in served] == [each.tokens for each in reference]
    assert [_kept(answer) for answer in served] == [_counted(each) for each in reference]
    assert accepted_length(served) >= 3.0


def _kept(answer: Answer) -> list[int]:
    return answer.meta["spec_correct_drafts_histogram"]


def _counted(generation: Generation) -> list[int]:
    kept = [each.kept for each in generation.rounds]
    return [kept.count(count) for count in range(max(kept) + 1)]


def test_the_released_layout(
    trained: DemoPair, held_out: list[str], served: list[Answer], logs: Path, tmp_path: Path
) -> None:
    """The same draft through `sglang-dspark convert`."""
    assert main(["convert", str(trained.draft), str(tmp_path / "draft"), "--to", "released"]) == 0
    with serve(DemoPair(trained.target, tmp_path / "draft"), logs / "converted.log") as server:
        converted = ask_all(server, held_out[:16])
    assert [answer.tokens for answer in converted] == [answer.tokens for answer in served[:16]]
    assert [_kept(answer) for answer in converted] == [_kept(answer) for answer in served[:16]]


def test_as_automodel_exports_it(
    trained: DemoPair, held_out: list[str], served: list[Answer], logs: Path, tmp_path: Path
) -> None:
    """The draft loaded into AutoModel's own class and exported by AutoModel's own function, config included."""
    from nemo_automodel.components.models.minimax_m3_vl.config import MiniMaxM3VLTextConfig
    from nemo_automodel.components.speculative.decode_eval import export_draft_snapshot
    from nemo_automodel.components.speculative.dspark.draft_minimax_m3 import MiniMaxM3DSparkModel
    from safetensors.torch import load_file

    from sglang_dspark.checkpoints import read_config

    config = MiniMaxM3VLTextConfig(**read_config(trained.draft))
    config._attn_implementation = "sdpa"
    draft = MiniMaxM3DSparkModel(config)
    draft.load_state_dict({name: t.float() for name, t in load_file(trained.draft / "model.safetensors").items()})
    exported = Path(export_draft_snapshot(draft, str(tmp_path)))
    with serve(DemoPair(trained.target, exported), logs / "automodel.log") as server:
        answers = ask_all(server, held_out[:16])
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in served[:16]]
    assert [_kept(answer) for answer in answers] == [_kept(answer) for answer in served[:16]]
