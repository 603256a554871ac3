"""Reading a draft's config. A value read wrongly here never raises later, acceptance just collapses: so each test names
the wrong reading it catches, and every refusal has to name the key that causes it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sglang_dspark.checkpoints import CheckpointError, DraftConfig, Layout, parse_draft_config
from sglang_dspark.checkpoints.config import detect_layout
from tests.unit.checkpoints.drafts import REMOVED, TARGET, automodel, released

BOTH = pytest.mark.parametrize("config", [automodel, released], ids=["automodel", "released"])


def problems(raw: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(CheckpointError) as refusal:
        parse_draft_config(raw, "some/draft")
    assert "some/draft" in str(refusal.value)
    assert all(problem in str(refusal.value) for problem in refusal.value.problems)
    return refusal.value.problems


def the_one_problem(raw: dict[str, Any]) -> str:
    found = problems(raw)
    assert len(found) == 1, found
    return found[0]


def renamed(automodel_name: str, released_name: str, value: Any, layout: Layout) -> dict[str, Any]:
    """A config of the layout with one value, under the key that the layout has for it."""
    if layout is Layout.AUTOMODEL:
        return automodel(**{automodel_name: value})
    table, _, key = released_name.rpartition(".")
    return released(**({table: {key: value}} if table else {key: value}))


def test_both_layouts_say_the_same() -> None:
    """Layout B read with A's keys (or the reverse) takes the target's depth or MLP width for the draft's."""
    from_automodel = parse_draft_config(automodel(), "a")
    from_released = parse_draft_config(released(), "b")
    assert from_automodel.layout is Layout.AUTOMODEL
    assert from_released.layout is Layout.RELEASED
    assert dataclasses.replace(from_released, layout=Layout.AUTOMODEL) == from_automodel
    assert from_automodel == DraftConfig(
        layout=Layout.AUTOMODEL,
        num_layers=2,
        hidden_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rotary_dim=8,
        rope_theta=5e6,
        rms_norm_eps=1e-6,
        mlp_width=64,
        vocab_size=100,
        max_position_embeddings=512,
        block_size=7,
        mask_token_id=99,
        target_layer_ids=(1, 3, 4),
        num_target_layers=6,
        markov_rank=12,
        markov_head_type="vanilla",
        enable_confidence_head=True,
        confidence_head_with_markov=True,
        quantized=False,
    )


def test_text_config_is_read_and_the_top_level_dspark_keys_win() -> None:
    """A vision-language export nests the text keys; its text_config may carry the target's own dspark_ keys."""
    flat = released()
    text = {key: flat.pop(key) for key in ("hidden_size", "vocab_size", "head_dim", "num_attention_heads")}
    nested = flat | {"text_config": text | {"dspark_block_size": 3}}
    assert parse_draft_config(nested, "b") == parse_draft_config(released(), "b")


def test_the_draft_may_have_no_confidence_head_or_one_without_markov() -> None:
    """A default that wins over the config would ask for tensors that such a checkpoint does not have."""
    config = parse_draft_config(automodel(enable_confidence_head=False, confidence_head_with_markov=False), "a")
    assert not config.enable_confidence_head
    assert not config.confidence_head_with_markov


def test_quantization_config_is_noticed() -> None:
    """Without it, packed weights would be refused for their shape."""
    assert parse_draft_config(automodel(quantization_config={"quant_method": "fp8"}), "a").quantized


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn", "Vanilla"])
@BOTH
def test_every_markov_head(config: Any, head: str) -> None:
    """A head that training offers and the reader does not know would be refused."""
    key = "markov_head_type" if config is automodel else "dspark_markov_head_type"
    assert parse_draft_config(config(**{key: head}), "x").markov_head_type == head.lower()


# --- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({}, "architectures []"),
        ({"architectures": None}, "architectures []"),
        ({"architectures": ["MiniMaxM3DSparkModel", "DSparkMiniMaxDraftModel"]}, "MiniMaxM3DSparkModel"),
        ({"architectures": ["DSparkDraftModel"], "transformer_layer_config": {}}, "speculators"),
        ({"architectures": ["DSparkSpeculator"], "speculators_config": {}}, "speculators"),
        ({"architectures": ["Eagle"], "hf_quant_config": {}}, "ModelOpt"),
        ({"architectures": ["Eagle"], "modelopt_version": "0.40"}, "ModelOpt"),
    ],
)
def test_neither_layout_is_refused(raw: dict[str, Any], named: str) -> None:
    """Anything else read as one of the two layouts would be served with made-up values."""
    with pytest.raises(CheckpointError) as refusal:
        detect_layout(raw, "x")
    (problem,) = refusal.value.problems
    assert named in problem
    assert "MiniMaxM3DSparkModel" in problem and "DSparkMiniMaxDraftModel" in problem
    assert "pass a draft in" in problem


# --- missing and mistyped keys ---------------------------------------------------------------------------------------

_COMMON = (
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rotary_dim",
    "rope_theta",
    "rms_norm_eps",
    "vocab_size",
    "max_position_embeddings",
)
_AUTOMODEL_KEYS = (
    *_COMMON,
    "num_hidden_layers",
    "num_target_layers",
    "target_layer_ids",
    "intermediate_size",
    "block_size",
    "mask_token_id",
    "markov_rank",
)


def test_every_missing_key_is_listed_at_once() -> None:
    """Fault 11. A reader that stops at the first key costs its user one start of the server a key."""
    found = problems(automodel(**dict.fromkeys(_AUTOMODEL_KEYS, REMOVED)))
    assert sorted(problem.split(":")[0] for problem in found) == sorted(_AUTOMODEL_KEYS)


def test_every_missing_key_of_the_released_layout_is_listed_at_once() -> None:
    """The nested keys must be named with their table, or nobody finds them."""
    inner = dict.fromkeys(("num_target_layers", "num_hidden_layers", "target_layer_ids"), REMOVED)
    top = dict.fromkeys((*_COMMON, "dspark_block_size", "dspark_noise_token_id", "dspark_markov_rank"), REMOVED)
    found = problems(
        released(dflash_config=inner, dspark_config={"ffn_hidden_size": REMOVED}, dspark_ffn_hidden_size=REMOVED, **top)
    )
    expected = {f"dflash_config.{name}" for name in inner} | set(top) | {"ffn_hidden_size"}
    assert {problem.split(":")[0] for problem in found} == expected


@pytest.mark.parametrize("key", _AUTOMODEL_KEYS)
def test_a_mistyped_value_is_named(key: str) -> None:
    """int("7") or bool-as-1 would guess what the config meant."""
    for value in ("7", True, None):
        assert the_one_problem(automodel(**{key: value})).startswith(f"{key}: asked for a ")


def test_whole_numbers_are_not_rounded() -> None:
    """A block size of 7.5 must not become 7."""
    assert "7.5" in the_one_problem(automodel(block_size=7.5))
    assert "target_layer_ids" in the_one_problem(automodel(target_layer_ids=[1, 2.0]))
    assert "target_layer_ids" in the_one_problem(automodel(target_layer_ids="1,2"))


def test_a_table_that_is_no_table_is_refused() -> None:
    """`dict(3)` would raise a TypeError that names nothing."""
    assert problems(released(dflash_config=3))[0].startswith("dflash_config: asked for a table")


def test_a_missing_key_raises_no_false_alarm() -> None:
    """A missing vocab_size stands in as 0; a check that reads it would call the good mask token wrong."""
    assert the_one_problem(automodel(vocab_size=REMOVED)).startswith("vocab_size: asked for a whole number")


# --- rope theta ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [{"rope_theta": 5e6}, {"rope_theta": 5e6, "rope_type": "default"}])
@BOTH
def test_rope_theta_from_rope_parameters(config: Any, table: dict[str, Any]) -> None:
    """Newer transformers move the key; a reader of the old place alone finds nothing."""
    raw = config(rope_theta=REMOVED, rope_parameters=table)
    assert parse_draft_config(raw, "x").rope_theta == 5e6


@pytest.mark.parametrize("table", [REMOVED, {}, {"rope_type": "default"}, {"rope_theta": None}])
@BOTH
def test_rope_theta_is_never_defaulted(config: Any, table: Any) -> None:
    """Most libraries fall back to 10000, and every key of the draft is then rotated wrongly."""
    problem = the_one_problem(config(rope_theta=REMOVED, rope_parameters=table))
    assert problem.startswith("rope_theta: asked for a number")


# --- values that cannot be served ------------------------------------------------------------------------------------

LAYOUTS = pytest.mark.parametrize("layout", list(Layout), ids=lambda layout: layout.name.lower())


@pytest.mark.parametrize("value", [0, -1])
@LAYOUTS
def test_block_size_below_one(layout: Layout, value: int) -> None:
    """A block of no tokens drafts nothing, and SGLang divides by it."""
    problem = the_one_problem(renamed("block_size", "dspark_block_size", value, layout))
    assert problem.startswith("block_size: ") and str(value) in problem


@pytest.mark.parametrize("value", [-1, 100, 200064])
@LAYOUTS
def test_mask_token_outside_the_vocabulary(layout: Layout, value: int) -> None:
    """Fault 11. == vocab_size is one past the end: an embedding row that does not exist. -1 would wrap in torch."""
    problem = the_one_problem(renamed("mask_token_id", "dspark_noise_token_id", value, layout))
    assert problem.startswith("mask_token_id: ") and str(value) in problem and "[0, 100)" in problem


@pytest.mark.parametrize("value", [0, 99])
@LAYOUTS
def test_mask_token_at_the_ends_of_the_vocabulary(layout: Layout, value: int) -> None:
    """Off by one at either end."""
    assert parse_draft_config(renamed("mask_token_id", "dspark_noise_token_id", value, layout), "x")


@pytest.mark.parametrize("value", ["mlp", "lstm", ""])
@LAYOUTS
def test_unknown_markov_head(layout: Layout, value: str) -> None:
    """An unknown head must not be served as vanilla; the known ones are named."""
    problem = the_one_problem(renamed("markov_head_type", "dspark_markov_head_type", value, layout))
    assert problem.startswith("markov_head_type: ") and repr(value) in problem and "vanilla, gated, rnn" in problem


def test_an_absent_markov_head_type_is_vanilla_where_sglang_reads_it_so() -> None:
    assert parse_draft_config(released(dspark_markov_head_type=REMOVED), "x").markov_head_type == "vanilla"
    assert the_one_problem(automodel(markov_head_type=REMOVED)).startswith("markov_head_type: asked for a word")


@LAYOUTS
def test_no_markov_head(layout: Layout) -> None:
    """Rank 0 means a DFlash draft, which SGLang's DSPARK model cannot build."""
    assert the_one_problem(renamed("markov_rank", "dspark_markov_rank", 0, layout)).startswith("markov_rank: ")


@LAYOUTS
def test_no_layers(layout: Layout) -> None:
    """A depth of 0 builds an empty backbone that drafts from the embedding alone."""
    raw = renamed("num_hidden_layers", "dflash_config.num_hidden_layers", 0, layout)
    assert the_one_problem(raw).startswith("num_hidden_layers: ")


@pytest.mark.parametrize("value", [0, 7, 18, -2])
def test_rotary_dim(value: int) -> None:
    """Pairs need an even count inside the head."""
    assert the_one_problem(automodel(rotary_dim=value)).startswith("rotary_dim: ")


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        ([], "at least one"),
        ([-1, 1], "-1 means the embedding"),
        ([-2, 1], "[-2] are not layers"),
        ([1, 6], "[6] are not layers of a target with 6 (0 to 5)"),
        ([1, 1], "once"),
        ([3, 1], "ascending"),
    ],
)
@LAYOUTS
def test_target_layer_ids(layout: Layout, ids: list[int], named: str) -> None:
    """Fault 8.

    Each of these captures other features than the draft was trained on; SGLang reads -1 as the last layer's.
    """
    problem = the_one_problem(renamed("target_layer_ids", "dflash_config.target_layer_ids", ids, layout))
    assert problem.startswith("target_layer_ids") or "target_layer_ids" in problem
    assert named in problem


def test_every_problem_of_the_layer_ids_is_named() -> None:
    """One start of the server tells all that is wrong."""
    found = problems(automodel(target_layer_ids=[-1, 5, 5, 9]))
    assert len(found) == 4
    for problem, named in zip(found, ("-1", "[9]", "once", "last layer"), strict=True):
        assert named in problem


def test_the_last_layer_is_refused_in_layout_a_alone() -> None:
    """Fault 8.

    AutoModel trained on the post-norm hidden there and the server captures the residual; layout B means that one.
    """
    problem = the_one_problem(automodel(target_layer_ids=[1, 5]))
    assert "last layer" in problem and "final norm" in problem and "retrain" in problem
    assert parse_draft_config(released(dflash_config={"target_layer_ids": [1, 5]}), "b").target_layer_ids == (1, 5)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"use_gemma_norm": False}, "use_gemma_norm"),
        ({"use_gemma_norm": REMOVED}, "use_gemma_norm"),
        ({"qk_norm_type": "per_layer"}, "qk_norm_type"),
        ({"qk_norm_type": REMOVED}, "qk_norm_type"),
        ({"swiglu_beta": 0.0}, "swiglu_beta"),
        ({"swiglu_alpha": REMOVED}, "swiglu_alpha"),
        ({"swiglu_limit": None}, "swiglu_limit"),
        ({"sample_from_anchor": False}, "sample_from_anchor"),
        ({"draft_vocab_size": 50}, "draft_vocab_size"),
        ({"d2t": [0, 1]}, "d2t"),
    ],
)
@BOTH
def test_another_network_is_refused_by_name(config: Any, change: dict[str, Any], key: str) -> None:
    """Faults 9 and 10.

    Each key changes what the network computes; served anyway, acceptance would collapse without a word.
    """
    assert key in the_one_problem(config(**change)).split(":")[0]


@pytest.mark.parametrize("name", ["enable_confidence_head", "confidence_head_with_markov", "sample_from_anchor"])
@pytest.mark.parametrize("value", ["false", "true", 0, 1, None, []])
@BOTH
def test_a_switch_is_true_or_false(config: Any, name: str, value: Any) -> None:
    """bool("false") is true: such a draft would be built with a head that its files do not hold."""
    assert the_one_problem(config(**{name: value})).startswith(f"{name}: asked for true or false, found {value!r}")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 10**400, True, "1e6", None])
@pytest.mark.parametrize("key", ["rope_theta", "rms_norm_eps", "swiglu_alpha", "swiglu_limit"])
def test_a_number_is_finite(key: str, value: Any) -> None:
    """Python reads NaN and Infinity from JSON, and any number of digits; every K would be NaN."""
    assert the_one_problem(automodel(**{key: value})).startswith(f"{key}: asked for a number")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, 0) for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")),
        *((key, -1) for key in ("vocab_size", "intermediate_size", "max_position_embeddings", "num_target_layers")),
        *(("rope_theta", 0), ("rope_theta", -1.0), ("rms_norm_eps", -1e-6), ("swiglu_limit", 0)),
        *(("num_hidden_layers", 10**9), ("block_size", 513), ("num_key_value_heads", 3)),
    ],
)
def test_a_size_that_no_draft_has(key: str, value: Any) -> None:
    """A head count of 0 is a division by it; 10^9 layers are 10^10 tensor names that are made up and listed."""
    said = {"intermediate_size": "mlp_width", "num_key_value_heads": "heads"}.get(key, key)
    assert any(said in problem for problem in problems(automodel(**{key: value})))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (automodel(text_config={"hidden_size": 48}), "flat, found a nested one"),
        (automodel(text_config=3), "text_config: asked for a table"),
        (released(text_config=[]), "text_config: asked for a table"),
        (released(quantization_config="fp8"), "quantization_config: asked for a table"),
        (released(dspark_ffn_hidden_size=65), "dspark_ffn_hidden_size: found 65, and 64 in dspark_config"),
        (released(dspark_use_dense_ffn=False), "dspark_use_dense_ffn: found False, and True in dspark_config"),
        (automodel(configuration_files=["config.4.0.0.json"]), "configuration_files: asked for one config.json"),
        (automodel(layer_types=3), "layer_types: asked for a list of words"),
        (automodel(swiglu_beta=[1.0]), "swiglu_beta: asked for 1.0"),
    ],
)
def test_a_config_that_two_readers_read_differently(raw: dict[str, Any], said: str) -> None:
    """Ours accepts one draft and the server builds another, or ends in a traceback of its own."""
    assert any(said in problem for problem in problems(raw))


def test_a_key_of_the_other_table_is_not_read() -> None:
    """SGLang reads the depth from dflash_config alone; merged tables would let this one win here."""
    assert parse_draft_config(released(dspark_config={"num_hidden_layers": 5}), "x").num_layers == 2


@pytest.mark.parametrize("value", [5, "MiniMaxM3DSparkModel", {"MiniMaxM3DSparkModel": 1}, True])
def test_architectures_that_are_no_list(value: Any) -> None:
    """`list(5)` is a TypeError out of the server's start."""
    assert "asked for architectures" in the_one_problem(automodel(architectures=value))


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (released(hidden_act="silu"), "hidden_act"),
        (released(dflash_config={"causal": True}), "causal"),
        (released(dflash_config={"layer_types": ["full_attention", "sliding_attention"]}), "layer_types"),
        (released(dflash_config={"use_swa": True}), "use_swa"),
        (automodel(layer_types=["sliding_attention"]), "layer_types"),
        (released(dspark_config={"use_dense_ffn": False}), "dspark_use_dense_ffn"),
        (released(dspark_config={"use_dense_ffn": REMOVED}, dspark_use_dense_ffn=REMOVED), "dspark_use_dense_ffn"),
    ],
)
def test_another_network_of_one_layout_is_refused_by_name(raw: dict[str, Any], key: str) -> None:
    """Fault 12. A causal block, a sliding window or a mixture of experts are other networks."""
    assert key in the_one_problem(raw).split(":")[0]


@pytest.mark.parametrize(
    "raw",
    [
        automodel(draft_vocab_size=100),
        automodel(sample_from_anchor=True, swiglu_beta=1),
        released(dflash_config={"causal": REMOVED, "layer_types": ["full_attention"], "use_swa": False}),
        # The target's layer types, copied to the top of a released config, are not the draft's.
        released(layer_types=["sliding_attention"]),
    ],
)
def test_the_same_network_said_otherwise_is_served(raw: dict[str, Any]) -> None:
    """A check that is too strict refuses good drafts."""
    assert parse_draft_config(raw, "x")


# --- the target and tensor parallelism -------------------------------------------------------------------------------


def test_the_right_target_has_no_problems() -> None:
    assert parse_draft_config(automodel(), "a").problems_with_target(TARGET) == []


@pytest.mark.parametrize(
    ("change", "name", "numbers"),
    [
        ({"num_layers": 7}, "num_target_layers", ("7", "6")),
        ({"hidden_size": 64}, "hidden_size", ("64", "48")),
        ({"vocab_size": 101}, "vocab_size", ("101", "100")),
    ],
)
def test_another_target_is_named(change: dict[str, int], name: str, numbers: tuple[str, str]) -> None:
    """A draft of another M3 loads into nothing, or (same sizes, other depth) captures other layers."""
    target = dataclasses.replace(TARGET, **change)
    (problem,) = parse_draft_config(automodel(), "a").problems_with_target(target)
    assert problem.startswith(f"{name}: the target has {numbers[0]}, the draft was made for {numbers[1]}")


def draft(heads: int = 8, kv_heads: int = 4, width: int = 64) -> DraftConfig:
    raw = automodel(num_attention_heads=heads, num_key_value_heads=kv_heads, intermediate_size=width)
    return parse_draft_config(raw, "a")


@pytest.mark.parametrize("tp_size", [1, 2, 4, 8])
def test_tensor_parallel_that_divides(tp_size: int) -> None:
    """More ranks than KV heads is fine where they are replicated evenly; refusing it would refuse TP 8 on M3."""
    assert draft().problems_with_tensor_parallel(tp_size) == []


@pytest.mark.parametrize(
    ("config", "tp_size", "named"),
    [
        (draft(heads=8), 16, "8 attention heads"),
        (draft(heads=12, kv_heads=4), 6, "4 KV heads"),
        (draft(heads=12, kv_heads=3), 2, "3 KV heads"),
        (draft(width=66), 4, "MLP width 66"),
        (dataclasses.replace(draft(), hidden_size=50), 4, "hidden_size 50"),
    ],
)
def test_tensor_parallel_that_does_not_divide(config: DraftConfig, tp_size: int, named: str) -> None:
    """SGLang would assert deep inside a layer, in a child process, after the target was loaded."""
    found = config.problems_with_tensor_parallel(tp_size)
    assert any(f"tensor parallel {tp_size} " in problem and named in problem for problem in found), found
    assert all(problem.endswith("choose a --tp-size that does") for problem in found)
