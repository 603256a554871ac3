"""The model's own promises: what it refuses, what stays float32, that both of its paths are one network."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark.reference import MiniMaxM3DSparkModel, compute_dspark_loss
from sglang_dspark.reference.attention_mask import flex_suits
from tests.unit.reference.pairs import small_table


def model(tmp_path, attention: str = "auto", dtype: torch.dtype = torch.float32, **changes) -> MiniMaxM3DSparkModel:
    torch.manual_seed(0)
    made = MiniMaxM3DSparkModel(small_table(tmp_path, **changes), attention)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" in name:
                parameter.normal_(std=0.3)
    return made.to(dtype).eval()


def batch(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    loss_mask = torch.ones(2, 20)
    loss_mask[1, 11:] = 0
    return {
        "input_ids": torch.randint(0, 10, (2, 20)),
        "target_hidden_states": torch.randn(2, 20, 64, dtype=dtype),
        "loss_mask": loss_mask,
        "target_last_hidden_states": torch.randn(2, 20, 32, dtype=dtype),
    }


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_training_and_drafting_are_one_network(tmp_path, head) -> None:
    """A training block equals the block drafted from a context of exactly the tokens before its anchor."""
    draft = model(tmp_path, markov_head_type=head, num_anchors=50)
    inputs = batch()
    with torch.no_grad():
        out = draft(**inputs)
        for block in range(0, 19, 3):
            anchor = block + 1 if block == 0 else block  # all supervised pairs are anchors, in order; 0 has no context
            features = inputs["target_hidden_states"][:1, :anchor]
            context = draft.context_keys_values(features, torch.arange(anchor).unsqueeze(0))
            hidden = draft.draft_block(inputs["input_ids"][:1, anchor], context)
            following = inputs["input_ids"][:1, anchor : anchor + 4]
            previous = torch.nn.functional.pad(following, (0, 4 - following.shape[1]))
            logits = draft.markov_head.block_logits(draft.compute_logits(hidden), previous, hidden)
            rows = int(out.eval_mask[0, anchor].sum())
            torch.testing.assert_close(logits[0, :rows], out.draft_logits[0, anchor, :rows], atol=1e-5, rtol=1e-5)
            confidence = draft.predict_confidence_step(hidden, previous)
            torch.testing.assert_close(confidence[0, :rows], out.confidence_pred[0, anchor, :rows], atol=1e-5, rtol=0)


def test_what_follows_an_anchor_is_never_seen(tmp_path) -> None:
    """Neither its own features nor later ones, nor the tokens of other blocks."""
    draft, inputs = model(tmp_path, num_anchors=50), batch()
    with torch.no_grad():
        before = draft(**inputs)
        inputs["target_hidden_states"][:, 7:] += 1.0
        after = draft(**inputs)
    same = (before.draft_logits == after.draft_logits).flatten(2).all(-1)[0, :19]
    assert same.tolist() == [anchor <= 7 for anchor in range(19)]


def test_padding_on_the_right_changes_nothing(tmp_path) -> None:
    draft, inputs = model(tmp_path, num_anchors=50), batch()
    short = {name: tensor[1:, :11] for name, tensor in inputs.items()}
    with torch.no_grad():
        whole, alone = draft(**inputs), draft(**short)
    assert torch.equal(whole.eval_mask[1], alone.eval_mask[0])
    counted = alone.eval_mask[0]
    torch.testing.assert_close(whole.draft_logits[1][counted], alone.draft_logits[0][counted], atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_the_same_network(tmp_path) -> None:
    """In eager mode; a GPU compiles it. `auto` takes the dense mask on a CPU, whose FlexAttention has no backward."""
    dense, flex = model(tmp_path), model(tmp_path, attention="flex")
    inputs = batch()
    results = []
    for draft in (dense, flex):
        torch.manual_seed(2)
        with torch.no_grad():
            results.append(draft(**inputs).draft_logits)
    torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=1e-5)
    assert not flex_suits(inputs["loss_mask"], 128)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_stay_close(tmp_path, dtype) -> None:
    """float64 down to float32 rounding, so nothing in between is cast; bf16 within its own, angles in float32."""
    results = []
    for kind in (torch.float32, dtype):
        inputs = batch()
        if kind != torch.float32:
            for name in ("target_hidden_states", "target_last_hidden_states"):
                inputs[name] = inputs[name].to(kind)
        torch.manual_seed(2)
        draft = model(tmp_path, dtype=kind)
        assert draft.rotary_emb.inverse_frequencies.dtype == torch.float32
        out = draft(**inputs)
        assert out.draft_logits.dtype == kind
        assert out.confidence_pred.dtype == (kind if kind == torch.float64 else torch.float32)
        results.append(out.draft_logits.double())
        assert compute_dspark_loss(out).loss.isfinite()
    largest = (results[0] - results[1]).abs().max()
    assert largest < (1e-5 if dtype == torch.float64 else 0.1)


def test_the_target_s_tables_are_copied_and_frozen(tmp_path) -> None:
    draft = model(tmp_path)
    embedding, head = torch.nn.Embedding(11, 32), torch.nn.Linear(32, 11, bias=False)
    draft.initialize_embeddings_and_head(embed_tokens=embedding, lm_head=head)
    assert torch.equal(draft.embed_tokens.weight, embedding.weight) and torch.equal(draft.lm_head.weight, head.weight)
    assert not draft.embed_tokens.weight.requires_grad and not draft.lm_head.weight.requires_grad
    compute_dspark_loss(draft(**batch())).loss.backward()
    assert draft.lm_head.weight.grad is None and draft.fc.weight.grad.abs().sum() > 0
    draft.set_embedding_head_trainable(True)
    assert draft.embed_tokens.weight.requires_grad and draft.lm_head.weight.requires_grad
    draft.initialize_embeddings_and_head(embed_tokens=embedding, lm_head=head, freeze=False)
    assert draft.lm_head.weight.requires_grad


def test_tables_of_another_target_are_refused(tmp_path) -> None:
    draft = model(tmp_path)
    with pytest.raises(ValueError, match=r"embed_tokens is \[11, 32\], found \[12, 32\]"):
        draft.initialize_embeddings_and_head(
            embed_tokens=torch.nn.Embedding(12, 32), lm_head=torch.nn.Linear(32, 11, bias=False)
        )


@pytest.mark.parametrize("name", ["target_hidden_states", "loss_mask", "target_last_hidden_states"])
def test_a_batch_that_does_not_fit_is_refused(tmp_path, name) -> None:
    inputs = batch()
    inputs[name] = inputs[name][:, :-1]
    with pytest.raises(ValueError, match=rf"{name}: asked for \[2, 20.*found \[2, 19"):
        model(tmp_path)(**inputs)


def test_what_a_head_needs_is_asked_for(tmp_path) -> None:
    draft = model(tmp_path, markov_head_type="gated")
    with pytest.raises(ValueError, match="needs the block's hidden states"):
        draft.sample_draft_tokens(torch.zeros(1, 4, 11), first_prev_token_ids=torch.tensor([1]))
    with pytest.raises(ValueError, match="pass prev_token_ids"):
        draft.predict_confidence_step(torch.zeros(1, 32))
    with pytest.raises(ValueError, match=r"logits \[B, V\] of one row, found \[1, 4, 11\]"):
        draft.sample_draft_token_step(torch.zeros(1, 4, 11), prev_token_ids=torch.tensor([1]))
    assert model(tmp_path, enable_confidence_head=False).predict_confidence_step(torch.zeros(1, 32)) is None


def test_an_unknown_attention_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="asked for attention 'sdpa'; take one of auto, dense, flex"):
        model(tmp_path, attention="sdpa")
