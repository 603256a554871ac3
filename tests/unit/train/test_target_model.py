"""The trainable target against the oracle, which reads the same checkpoint and shares no code with it."""

import pytest
import torch
from safetensors.torch import load_file

from sglang_dspark.demo import DemoSpec, build
from sglang_dspark.demo.target import target_config
from sglang_dspark.train.loop import LoopSettings, train
from sglang_dspark.train.target_files import (
    TargetMismatch,
    checkpoint_tensors,
    load_checkpoint_tensors,
    load_text_model,
)
from sglang_dspark.train.target_model import KeyValueCache, MoE, TextModel
from sglang_dspark.train.target_training import TargetObjective, encode_texts
from tests.oracle.target import Target

SMALL = DemoSpec.tiny(16, moe_layers=(0, 1), sparse_layers=(0, 1), target_layer_ids=(0,))


@pytest.fixture(params=[0, 1], ids=["no initial blocks", "initial blocks"])
def checkpoint(request, tmp_path):
    return build(tmp_path, spec=DemoSpec.tiny(12, sparse_init_blocks=request.param)).target


@pytest.fixture
def tokens():
    return torch.randint(0, 11, (2, 50), generator=torch.Generator().manual_seed(0))


def test_it_computes_what_the_oracle_computes(checkpoint, tokens):
    """Regime: 50 tokens against 3 blocks of 4, so that blocks are left out. Catches every wrong rule of the network."""
    model, oracle = load_text_model(checkpoint), Target(checkpoint)
    output = model(tokens)
    for row, sequence in enumerate(tokens.tolist()):
        expected = oracle.forward(sequence)
        torch.testing.assert_close(model.logits(output.last_hidden)[row], expected.logits, atol=2e-5, rtol=0)
        ours = torch.stack([layer[row] for layer in output.layer_outputs])
        torch.testing.assert_close(ours, expected.layer_outputs, atol=5e-5, rtol=0)


def test_a_step_at_a_time_equals_the_whole_sequence(checkpoint, tokens):
    """Catches positions that start at zero in every call, and a mask for the new tokens alone."""
    model, cache = load_text_model(checkpoint), KeyValueCache()
    steps = [model(part, cache).last_hidden for part in tokens.split([20, 1, 29], dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), model(tokens).last_hidden, atol=2e-5, rtol=0)


def test_the_checkpoint_comes_back_as_it_went(checkpoint):
    """Experts are cut apart and put together; a mix-up of two of them would go unseen in their shapes."""
    stored = load_file(checkpoint / "model.safetensors")
    again = checkpoint_tensors(load_text_model(checkpoint))
    assert again.keys() == stored.keys()
    for name, tensor in stored.items():
        assert again[name].dtype == tensor.dtype and torch.equal(again[name], tensor), name


def test_every_problem_of_a_checkpoint_is_named_at_once(checkpoint):
    model = load_text_model(checkpoint)
    tensors = checkpoint_tensors(model)
    tensors["model.extra"] = tensors.pop("model.norm.weight")
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1]
    with pytest.raises(TargetMismatch) as error:
        load_checkpoint_tensors(model, tensors, "here")
    for part in ("model.norm.weight: missing", "model.extra: unexpected", "found [11, 64]", "here"):
        assert part in str(error.value)


def test_a_few_steps_teach_it_and_leave_its_index_alone(tmp_path):
    """The stream repeats four tokens. The index has no gradient: an optimizer that moved it would only decay it."""
    model = TextModel(target_config(SMALL))
    model.initialize(1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    losses = []
    objective = TargetObjective(model, torch.tensor([3, 1, 4, 1, 5] * 40, dtype=torch.int32), batch=4, window=16)
    settings = LoopSettings(steps=25, learning_rate=0.01)
    train(objective, settings, tmp_path, progress=lambda step, steps, values: losses.append(values["loss"]))
    assert losses[-1] < 0.6 * losses[0]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]) == (".index_" in name), name


def test_routing_biases_move_toward_equal_loads():
    moe = MoE(target_config(SMALL))
    moe.train()
    # Every token has a one in channel 0, and there stands experts 0's and 1's advantage.
    with torch.no_grad():
        moe.gate.weight.zero_()
        moe.gate.weight[:2, 0] = 5.0
    moe(torch.ones(1, 8, SMALL.hidden_size))
    assert moe.e_score_correction_bias.tolist() == pytest.approx([-1e-3, -1e-3, 1e-3, 1e-3])
    moe.eval()
    moe(torch.ones(1, 8, SMALL.hidden_size))
    assert moe.e_score_correction_bias.tolist() == pytest.approx([-1e-3, -1e-3, 1e-3, 1e-3])


def test_texts_lie_in_one_row_with_an_end_behind_each(pair):
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    assert encode_texts(tokenizer, ["t3 t4", "t5"], 2).tolist() == [3, 4, 2, 5, 2]
    assert encode_texts(tokenizer, ["t3 t4", "t5"], None).tolist() == [3, 4, 5]


def test_a_stream_shorter_than_a_window_is_refused():
    with pytest.raises(ValueError, match="windows of 16 tokens, found 10"):
        TargetObjective(TextModel(target_config(SMALL)), torch.zeros(10, dtype=torch.int32), batch=1, window=16)
