"""Tensor names and shapes: every tensor of a checkpoint is accounted for once, one message lists all that is wrong."""

from __future__ import annotations

import pytest

from sglang_dspark.checkpoints import Accounting, DraftConfig, Layout, expected_shapes, parse_draft_config
from sglang_dspark.checkpoints.tensors import Shape, account, canonical_name, released_name
from tests.unit.checkpoints.drafts import automodel, released

FP8 = {"quantization_config": {"quant_method": "fp8"}}


def config_of(layout: Layout, **changes: object) -> DraftConfig:
    return parse_draft_config(automodel(**changes) if layout is Layout.AUTOMODEL else released(**changes), "x")


def checkpoint(config: DraftConfig) -> dict[str, Shape]:
    """A complete checkpoint: raw name -> shape."""
    shapes = expected_shapes(config)
    if config.layout is Layout.RELEASED:
        return {released_name(name): shape for name, shape in shapes.items()}
    return shapes | dict.fromkeys(("embed_tokens.weight", "lm_head.weight"), (config.vocab_size, config.hidden_size))


LAYOUTS = pytest.mark.parametrize("layout", list(Layout), ids=lambda layout: layout.name.lower())


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["language_model.model.dspark.", "model.dspark.", "dspark."])
@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("fc.weight", "fc.weight"),
        ("hidden_norm.weight", "hidden_norm.weight"),
        ("final_norm.weight", "norm.weight"),
        ("layers.0.decoder_layer.input_layernorm.weight", "layers.0.input_layernorm.weight"),
        ("layers.11.decoder_layer.self_attn.q_norm.weight", "layers.11.self_attn.q_norm.weight"),
        ("layers.1.decoder_layer.mlp.up_proj.weight", "layers.1.mlp.up_proj.weight"),
        ("layers.1.decoder_layer.block_sparse_moe.up_proj.weight", "layers.1.mlp.up_proj.weight"),
        ("markov_head.markov_w1.weight", "markov_head.markov_w1.weight"),
        ("confidence_head.proj.bias", "confidence_head.proj.bias"),
    ],
)
def test_released_names(prefix: str, raw: str, name: str) -> None:
    """Fault 15. A prefix or a spelling that is not known loses its tensors, which would then count as missing."""
    assert canonical_name(prefix + raw, Layout.RELEASED) == name


@pytest.mark.parametrize("raw", ["fc.weight", "model.layers.0.mlp.up_proj.weight", "xdspark.fc.weight"])
def test_a_name_below_no_prefix_has_no_place(raw: str) -> None:
    """A target's own tensor must not be taken for the draft's of the same name."""
    assert canonical_name(raw, Layout.RELEASED) is None


def test_automodel_names_are_the_canonical_ones() -> None:
    assert canonical_name("layers.0.mlp.up_proj.weight", Layout.AUTOMODEL) == "layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_released_name_is_the_inverse(head: str) -> None:
    """Converting a checkpoint and reading it back must give every tensor its own name; two on one name lose one."""
    names = set(expected_shapes(config_of(Layout.RELEASED, dspark_markov_head_type=head)))
    there = {released_name(name) for name in names}
    assert len(there) == len(names)
    assert {canonical_name(name, Layout.RELEASED) for name in there} == names


# --- shapes ----------------------------------------------------------------------------------------------------------


def test_expected_shapes() -> None:
    """Written out by hand: an expectation with two sizes swapped would refuse every real checkpoint."""
    shapes = expected_shapes(config_of(Layout.AUTOMODEL))
    layer = {name.removeprefix("layers.1."): shape for name, shape in shapes.items() if name.startswith("layers.1.")}
    assert layer == {
        "input_layernorm.weight": (48,),
        "post_attention_layernorm.weight": (48,),
        "self_attn.q_proj.weight": (64, 48),
        "self_attn.k_proj.weight": (32, 48),
        "self_attn.v_proj.weight": (32, 48),
        "self_attn.o_proj.weight": (48, 64),
        "self_attn.q_norm.weight": (16,),
        "self_attn.k_norm.weight": (16,),
        "mlp.gate_proj.weight": (64, 48),
        "mlp.up_proj.weight": (64, 48),
        "mlp.down_proj.weight": (48, 64),
    }
    assert {name: shape for name, shape in shapes.items() if not name.startswith("layers.")} == {
        "fc.weight": (48, 144),
        "hidden_norm.weight": (48,),
        "norm.weight": (48,),
        "markov_head.markov_w1.weight": (100, 12),
        "markov_head.markov_w2.weight": (100, 12),
        "confidence_head.proj.weight": (1, 60),
        "confidence_head.proj.bias": (1,),
    }
    assert len(shapes) == 7 + 2 * 11


@pytest.mark.parametrize(
    ("head", "extra"),
    [
        ("vanilla", {}),
        ("gated", {"gate_proj.weight": (12, 60), "gate_proj.bias": (12,)}),
        ("rnn", {"joint_proj.weight": (36, 72), "joint_proj.bias": (36,)}),
    ],
)
def test_markov_heads(head: str, extra: dict[str, Shape]) -> None:
    """A head whose extra tensors are not expected would be served without them."""
    shapes = expected_shapes(config_of(Layout.AUTOMODEL, markov_head_type=head))
    markov = {name.removeprefix("markov_head."): s for name, s in shapes.items() if name.startswith("markov_head.")}
    assert markov == {"markov_w1.weight": (100, 12), "markov_w2.weight": (100, 12)} | extra


@pytest.mark.parametrize(
    ("enabled", "with_markov", "width"),
    [(True, True, 60), (True, False, 48), (False, True, None), (False, False, None)],
)
def test_confidence_heads(enabled: bool, with_markov: bool, width: int | None) -> None:
    """With Markov features the head also reads the previous token's embedding: another width."""
    config = config_of(Layout.AUTOMODEL, enable_confidence_head=enabled, confidence_head_with_markov=with_markov)
    expected = {} if width is None else {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}
    assert {n: s for n, s in expected_shapes(config).items() if n.startswith("confidence_head.")} == expected


# --- accounting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("confidence", [True, False])
@LAYOUTS
def test_a_complete_checkpoint_has_no_problems(layout: Layout, head: str, confidence: bool) -> None:
    """A check that is too strict refuses good drafts."""
    key = "markov_head_type" if layout is Layout.AUTOMODEL else "dspark_markov_head_type"
    config = config_of(layout, enable_confidence_head=confidence, **{key: head})
    assert account(config, checkpoint(config)) == []


def test_automodel_without_the_shared_tables_is_complete() -> None:
    """The server uses the target's embedding and LM head; a draft saved without copies is as good."""
    config = config_of(Layout.AUTOMODEL)
    assert account(config, expected_shapes(config)) == []


@LAYOUTS
def test_everything_wrong_is_listed_at_once(layout: Layout) -> None:
    """Fault 15.

    SGLang's loader stops at the first unexpected tensor, and its user learns of the next one a start later.
    """
    config = config_of(layout)
    spelled = released_name if layout is Layout.RELEASED else str
    shapes = checkpoint(config)
    del shapes[spelled("norm.weight")], shapes[spelled("layers.1.mlp.up_proj.weight")]
    shapes[spelled("fc.weight")] = (48, 96)
    shapes[spelled("layers.9.mlp.up_proj.weight")] = (64, 48)
    shapes[spelled("rotary_emb.inv_freq")] = (4,)
    found = account(config, shapes)
    assert sorted(found) == sorted(
        [
            f"tensor {spelled('norm.weight')}: missing",
            f"tensor {spelled('layers.1.mlp.up_proj.weight')}: missing",
            f"tensor {spelled('fc.weight')}: asked for shape [48, 144], found [48, 96]",
            f"tensor {spelled('layers.9.mlp.up_proj.weight')}: unexpected; no part of this draft has that name",
            f"tensor {spelled('rotary_emb.inv_freq')}: unexpected; no part of this draft has that name",
        ]
    )


@LAYOUTS
def test_every_tensor_is_needed(layout: Layout) -> None:
    """Each one left out is reported by the name it has in the file, and nothing else is."""
    config = config_of(layout)
    whole = checkpoint(config)
    for name in set(whole) - {"embed_tokens.weight", "lm_head.weight"}:
        assert account(config, {other: s for other, s in whole.items() if other != name}) == [f"tensor {name}: missing"]


@LAYOUTS
def test_every_shape_is_compared(layout: Layout) -> None:
    """The tables shared with the target too: a draft of another vocabulary has other ones."""
    config = config_of(layout)
    whole = checkpoint(config)
    for name, shape in whole.items():
        found = account(config, whole | {name: (*shape, 1)})
        assert found == [f"tensor {name}: asked for shape {list(shape)}, found {[*shape, 1]}"]


def test_a_confidence_head_that_the_config_does_not_have_is_unexpected() -> None:
    """Ignored, a wrong `enable_confidence_head` would go unseen."""
    config = config_of(Layout.AUTOMODEL, enable_confidence_head=False)
    shapes = checkpoint(config) | {"confidence_head.proj.weight": (1, 60)}
    assert account(config, shapes) == [
        "tensor confidence_head.proj.weight: unexpected; no part of this draft has that name"
    ]


def test_one_tensor_under_two_names_is_found_twice() -> None:
    """The second one would overwrite the first, in whichever order the files are read."""
    config = config_of(Layout.RELEASED)
    shapes = checkpoint(config)
    other = "dspark.layers.0.decoder_layer.block_sparse_moe.up_proj.weight"
    assert account(config, shapes | {other: (64, 48)}) == [f"tensor {other}: found twice"]


def test_the_released_layout_carries_no_tables() -> None:
    """An embedding below its prefix would be a trained one that the server does not use."""
    config = config_of(Layout.RELEASED)
    name = "dspark.embed_tokens.weight"
    assert account(config, checkpoint(config) | {name: (100, 48)}) == [
        f"tensor {name}: unexpected; no part of this draft has that name"
    ]


def test_add_returns_the_name_to_load() -> None:
    """None for what is shared or a problem: the loader would otherwise look for a parameter that is not there."""
    accounting = Accounting(config_of(Layout.AUTOMODEL))
    assert accounting.add("norm.weight", (48,)) == "norm.weight"
    assert accounting.add("norm.weight", (48,)) is None
    assert accounting.add("lm_head.weight", (100, 48)) is None
    assert accounting.add("hidden_norm.weight", (47,)) is None
    assert accounting.add("nobody.weight", (48,)) is None


# --- quantised drafts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["weight_scale", "weight_scale_inv", "weight_scale_2", "input_scale"])
def test_scales_beside_a_quantised_weight_are_loaded(suffix: str) -> None:
    """Refused as unexpected, no quantised draft could be served."""
    accounting = Accounting(config_of(Layout.AUTOMODEL, **FP8))
    name = f"layers.0.mlp.up_proj.{suffix}"
    assert accounting.add(name, (1,)) == name
    assert accounting.problems == []


def test_scales_have_their_place_too() -> None:
    """A scale of a weight that is not there belongs to another network."""
    accounting = Accounting(config_of(Layout.AUTOMODEL, **FP8))
    assert accounting.add("layers.9.mlp.up_proj.weight_scale", (1,)) is None
    assert accounting.add("layers.0.mlp.up_proj.weight_shape", (1,)) is None
    assert len(accounting.problems) == 2


def test_a_plain_draft_has_no_scales() -> None:
    """A quantised checkpoint whose config lost its quantisation would load garbage as weights."""
    config = config_of(Layout.AUTOMODEL)
    name = "layers.0.mlp.up_proj.weight_scale"
    assert account(config, checkpoint(config) | {name: (1,)}) == [
        f"tensor {name}: unexpected; no part of this draft has that name"
    ]


def test_packed_weights_have_their_formats_shape_and_norms_their_own() -> None:
    """4-bit weights are stored at half the width; a norm is never packed."""
    config = config_of(Layout.AUTOMODEL, **FP8)
    whole = checkpoint(config)
    packed = {"layers.0.mlp.up_proj.weight": (64, 24), "fc.weight": (48, 72)}
    assert account(config, whole | packed) == []
    found = account(config, whole | {"layers.0.self_attn.q_norm.weight": (8,)})
    assert found == ["tensor layers.0.self_attn.q_norm.weight: asked for shape [16], found [8]"]
