"""The real draft model, built in this process on one rank: what it loads, what it refuses, and the context K/V that it
writes against SGLang's own layer-by-layer path."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.models import dspark_minimax

from sglang_dspark.checkpoints import CheckpointError, expected_shapes, parse_draft_config
from sglang_dspark.checkpoints.tensors import released_name
from sglang_dspark.models import minimax_m3, minimax_m3_dspark
from sglang_dspark.models.minimax_m3 import MiniMaxM3SparseForCausalLM
from sglang_dspark.models.minimax_m3_dspark import CONTEXT_KV_VARIABLE, DSparkMiniMaxDraftModel
from sglang_dspark.ops.dispatch import Choice, NoBackend
from tests.unit.checkpoints.drafts import automodel, released

SLOTS = 40
TABLES = ("embed_tokens.weight", "lm_head.weight")


def canonical_tensors(raw: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Every tensor the draft needs, each filled with numbers of its own."""
    generator = torch.Generator().manual_seed(5)
    shapes = expected_shapes(parse_draft_config(raw, "x"))
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in sorted(shapes.items())}


def tables() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(6)
    return {name: torch.randn(100, 48, generator=generator) for name in TABLES}


def checkpoint(raw: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The same under the names of the config's layout."""
    tensors = canonical_tensors(raw)
    if raw["architectures"] == ["DSparkMiniMaxDraftModel"]:
        return {released_name(name): tensor for name, tensor in tensors.items()}
    return tables() | tensors


def assert_loaded(model: DSparkMiniMaxDraftModel, tensors: dict[str, torch.Tensor]) -> None:
    """Every parameter holds its tensor, fused ones theirs in the order that SGLang splits them."""
    expected = {}
    for name, parameter in model.named_parameters():
        plain = name.replace(".decoder_layer.", ".")
        for fused, parts in (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("gate_up_proj", ("gate_proj", "up_proj"))):
            if fused in plain:
                expected[name] = torch.cat([tensors[plain.replace(fused, part)] for part in parts])
                break
        else:
            expected[name] = tensors[plain]
        torch.testing.assert_close(parameter.detach(), expected[name].to(parameter.dtype), rtol=0, atol=0)


# --- loading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("layout", ["automodel", "released"])
def test_every_tensor_lands_in_its_parameter(build, layout: str, head: str) -> None:
    """A shard in another's place (up for gate, k for v) loads without a word and drafts nonsense."""
    raw = automodel(markov_head_type=head) if layout == "automodel" else released(dspark_markov_head_type=head)
    model = build(raw)
    loaded = model.load_weights(checkpoint(raw).items())
    assert loaded == {name for name, _ in model.named_parameters()}
    assert_loaded(model, canonical_tensors(raw))


def test_the_order_of_the_tensors_does_not_matter(build) -> None:
    """Shards of a checkpoint are read in any order."""
    raw = automodel()
    model = build(raw)
    model.load_weights(reversed(list(checkpoint(raw).items())))
    assert_loaded(model, canonical_tensors(raw))


def test_all_that_is_wrong_is_listed(build) -> None:
    """Fault 15. SGLang's own loader stops at the first unexpected tensor."""
    raw = released()
    tensors = checkpoint(raw)
    del tensors[released_name("fc.weight")], tensors[released_name("layers.0.self_attn.k_proj.weight")]
    tensors["dspark.nobody.weight"] = torch.zeros(1)
    tensors[released_name("norm.weight")] = torch.zeros(47)
    with pytest.raises(CheckpointError) as refusal:
        build(raw).load_weights(tensors.items())
    found = "\n".join(refusal.value.problems)
    assert len(refusal.value.problems) == 4
    for part in ("dspark.nobody.weight: unexpected", "final_norm.weight: asked for shape [48], found [47]"):
        assert part in found
    for part in ("fc.weight: missing", "layers.0.decoder_layer.self_attn.k_proj.weight: missing"):
        assert part in found


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(build, value: float) -> None:
    """A poisoned draft cannot change an answer: it only proposes nonsense for ever, and nothing would say so."""
    raw = released()
    tensors = checkpoint(raw)
    tensors[released_name("fc.weight")][3, 2] = value
    tensors[released_name("markov_head.markov_w1.weight")][5, 1] = value
    with pytest.raises(CheckpointError) as refusal:
        build(raw).load_weights(tensors.items())
    assert (
        f"fc.weight: asked for finite numbers, found 1 of {48 * tensors[released_name('fc.weight')].shape[1]}"
        in str(refusal.value)
    )
    assert "markov_w1.weight: asked for finite numbers" in str(refusal.value)


@pytest.mark.parametrize("with_markov", [True, False])
def test_the_confidence_head_where_it_is_read(build, monkeypatch, with_markov: bool) -> None:
    """Compact verify trims blocks by it: unloaded, it would trim them at random."""
    monkeypatch.setenv("SGLANG_RAGGED_VERIFY_MODE", "compact")
    raw = automodel(confidence_head_with_markov=with_markov)
    model = build(raw)
    model.load_weights(checkpoint(raw).items())
    assert model.confidence_head.proj.weight.shape == (1, 60 if with_markov else 48)
    assert_loaded(model, canonical_tensors(raw))


def test_no_confidence_head_where_the_draft_has_none(build, monkeypatch) -> None:
    """SGLang builds one from the verify mode alone, with random weights."""
    monkeypatch.setenv("SGLANG_RAGGED_VERIFY_MODE", "compact")
    raw = automodel(enable_confidence_head=False)
    model = build(raw)
    model.load_weights(checkpoint(raw).items())
    assert model.confidence_head is None


# --- building --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tp_size", [3, 8])
def test_tensor_parallel_that_does_not_divide(build, monkeypatch, tp_size: int) -> None:
    """SGLang would assert inside a layer, without a word about the draft."""
    monkeypatch.setattr(minimax_m3_dspark, "get_parallel", lambda: SimpleNamespace(attn_tp_size=tp_size))
    with pytest.raises(CheckpointError, match=f"tensor parallel {tp_size} does not divide the draft's 4 attention"):
        build()


@pytest.mark.parametrize("tp_rank", [0, 1])
def test_a_rank_of_two_holds_its_half(build, rank, tp_rank: int) -> None:
    """Heads and MLP columns of another rank would load as well, and the sum over ranks would be another network."""
    here = {f"{group}_rank": tp_rank for group in ("tp", "attn_tp", "moe_tp")}
    sizes = {"tp_size": 2, "attn_tp_size": 2, "moe_tp_size": 2}
    group = SimpleNamespace(rank_in_group=tp_rank, world_size=2)
    with rank.override(**here, **sizes, tp_group=group, attn_tp_group=group):
        model = build()
        model.load_weights(checkpoint(automodel()).items())
    tensors, half = canonical_tensors(automodel()), slice(tp_rank, tp_rank + 1)

    def part(name: str, dim: int) -> torch.Tensor:
        return tensors[f"layers.1.{name}.weight"].chunk(2, dim)[half][0]

    layer = model.layers[1].decoder_layer
    qkv = torch.cat([part(f"self_attn.{name}_proj", 0) for name in "qkv"])
    assert torch.equal(layer.self_attn.qkv_proj.weight, qkv)
    assert torch.equal(layer.self_attn.o_proj.weight, part("self_attn.o_proj", 1))
    gate_up = torch.cat([part("mlp.gate_proj", 0), part("mlp.up_proj", 0)])
    assert torch.equal(layer.mlp.gate_up_proj.weight, gate_up)
    assert torch.equal(layer.mlp.down_proj.weight, part("mlp.down_proj", 1))
    assert torch.equal(model.fc.weight, tensors["fc.weight"].chunk(2)[tp_rank])
    assert torch.equal(model.markov_head.markov_w2.weight, tensors["markov_head.markov_w2.weight"])


def test_a_config_that_is_not_servable_is_refused_when_the_model_is_built(build) -> None:
    """The start-up check sees local files alone: a draft from the hub meets the reader here."""
    with pytest.raises(CheckpointError, match="mask_token_id"):
        build(released(dspark_noise_token_id=100))


def test_a_rope_theta_that_the_config_does_not_have_is_not_made_up_on_the_way(build) -> None:
    """transformers fills rope_parameters in with a default of its own."""
    raw = released()
    del raw["rope_theta"]
    with pytest.raises(CheckpointError, match="rope_theta"):
        build(raw)


# --- tables shared with the target -----------------------------------------------------------------------------------


def modules(changed: str | None = None) -> dict[str, torch.nn.Module]:
    made = {}
    for key, name in zip(("embed_tokens", "lm_head"), TABLES, strict=True):
        weight = tables()[name]
        made[key] = torch.nn.Linear(48, 100, bias=False).requires_grad_(False)
        made[key].weight.data = weight + (torch.randn(weight.shape) if name == changed else 0)
    return made


def test_the_target_s_tables_are_taken_over(build) -> None:
    model = build()
    model.load_weights(checkpoint(automodel()).items())
    target = modules()
    model.attach_shared_modules(**target)
    assert model.embed_tokens is target["embed_tokens"] and model.lm_head is target["lm_head"]


@pytest.mark.parametrize("changed", TABLES)
def test_copies_that_differ_from_the_target_s_are_refused(build, changed: str) -> None:
    """A draft trained with its own tables would be served with others and accept next to nothing."""
    model = build()
    model.load_weights(checkpoint(automodel()).items())
    with pytest.raises(CheckpointError, match=f"tensor {changed}: asked for a copy of the target's"):
        model.attach_shared_modules(**modules(changed))


# --- the context K/V -------------------------------------------------------------------------------------------------


class Pool:
    """A draft KV pool with SGLang's two ways of writing, one row at a time; every slot starts as a sentinel."""

    def __init__(self, dtype: torch.dtype, layers: int = 2) -> None:
        self.keys = [torch.full((SLOTS, 2, 16), 7.0, dtype=dtype) for _ in range(layers)]
        self.values = [torch.full((SLOTS, 2, 16), -7.0, dtype=dtype) for _ in range(layers)]

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.keys[layer_id]

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self.values[layer_id]

    def set_kv_buffer(self, layer, location, k, v, k_scale=None, v_scale=None) -> None:
        for slot, key, value in zip(location.loc.tolist(), k, v, strict=True):
            self.keys[layer.layer_id][slot], self.values[layer.layer_id][slot] = key, value

    def set_kv_buffer_prefix_valid(self, layer, slots, commit_lens, k, v, k_scale=None, v_scale=None) -> None:
        k, v = k.unflatten(0, slots.shape), v.unflatten(0, slots.shape)
        for row, length in enumerate(commit_lens.tolist()):
            for column in range(length):
                slot = slots[row, column]
                self.keys[layer.layer_id][slot] = k[row, column]
                self.values[layer.layer_id][slot] = v[row, column]


def rows(kind: str, dtype: torch.dtype) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(8)
    slots = torch.randperm(SLOTS, generator=generator)[:12]
    case = {
        "target_hidden": torch.randn(12, 48 * (1 if kind == "projected" else 3), generator=generator).to(dtype),
        "positions": torch.randint(0, 500, (12,), generator=generator),
        "cache_loc": slots,
        "target_hidden_is_projected": kind == "projected",
    }
    if kind == "committed":
        case |= {"cache_loc_2d": slots.view(3, 4), "commit_lens": torch.tensor([4, 0, 2], dtype=torch.int32)}
    return case


def loaded_model(build, dtype: torch.dtype) -> DSparkMiniMaxDraftModel:
    model = build(dtype=dtype)
    model.load_weights((name, tensor.to(dtype)) for name, tensor in checkpoint(automodel()).items())
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["features", "projected", "committed"])
@torch.no_grad()
def test_the_context_is_written_as_sglang_writes_it(build, kind: str, dtype: torch.dtype) -> None:
    """K and V crossed, a layer's norm used for another, a row left uncommitted: the draft would see another context."""
    model = loaded_model(build, dtype)
    ours, theirs = Pool(dtype), Pool(dtype)
    model.write_target_hidden_kv(pool=ours, **rows(kind, dtype))
    assert model._write_context is not None, "SGLang's path was taken: there is nothing to compare"
    model._fused_kv_write_cache = (id(theirs), None)  # its fused write is a Triton kernel
    dspark_minimax.DSparkMiniMaxDraftModel.write_target_hidden_kv(model, pool=theirs, **rows(kind, dtype))
    # One product of all layers may add in another order, and the bf16 K is rounded twice: two units in the last place.
    close = {"rtol": 2**-7, "atol": 2**-7} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    for layer in range(2):
        torch.testing.assert_close(ours.keys[layer], theirs.keys[layer], **close)
        torch.testing.assert_close(ours.values[layer], theirs.values[layer], **close)
    touched = (ours.keys[0] != 7.0).flatten(1).any(-1)
    assert int(touched.sum()) == (6 if kind == "committed" else 12)
    assert not torch.allclose(ours.keys[0][touched], ours.keys[1][touched], atol=0.1)


def test_the_writer_is_bound_once_a_pool(build) -> None:
    """Chosen again for every call, it would break a captured graph; kept for another pool, it would write into freed
    memory."""
    model = loaded_model(build, torch.float32)
    first, second = Pool(torch.float32), Pool(torch.float32)
    assert model.bind_pool(first).startswith("context_kv=torch")
    bound = model._write_context
    model.write_target_hidden_kv(pool=first, **rows("features", torch.float32))
    assert model._write_context is bound
    model.write_target_hidden_kv(pool=second, **rows("features", torch.float32))
    assert model._write_context is not bound
    assert (second.keys[0] != 7.0).any()


def test_every_layer_s_query_path_is_bound_to_its_own_pool(build) -> None:
    """Bound to another layer's pool, the block's K and V would go where nobody reads them."""
    model = loaded_model(build, torch.float32)
    pool = Pool(torch.float32)
    assert "qk_norm_rope=torch" in model.bind_pool(pool)
    for layer in model.layers:
        attention = layer.self_attn
        tables = attention.forward._run.tables
        assert tables.k_pool is pool.keys[attention.attn.layer_id]
        assert tables.v_pool is pool.values[attention.attn.layer_id]
        torch.testing.assert_close(tables.q_norm_multipliers, 1 + attention.q_norm.weight.float())
        torch.testing.assert_close(tables.k_norm_multipliers, 1 + attention.k_norm.weight.float())


def test_new_norms_reach_the_bound_ops(build, monkeypatch) -> None:
    """A captured graph holds the multipliers' addresses: they are overwritten, not replaced."""
    model = loaded_model(build, torch.float32)
    model.bind_pool(Pool(torch.float32))
    tables = model.layers[1].self_attn.forward._run.tables
    changed = {name: t + 1 if "_norm." in name else t for name, t in checkpoint(automodel()).items()}
    refreshed: list[str] = []
    monkeypatch.setattr(Choice, "refresh", lambda choice: refreshed.append(choice.op))
    model.load_weights(changed.items())
    assert model.layers[1].self_attn.forward._run.tables is tables
    assert refreshed == ["context_kv", *["qk_norm_rope"] * len(model.layers)]  # those that keep copies take them over
    torch.testing.assert_close(tables.k_norm_multipliers, 1 + model.layers[1].self_attn.k_norm.weight.float())


@torch.no_grad()
def test_new_weights_reach_the_context(build) -> None:
    """The projection keeps a stacked copy: after a weight update, the context would still come from the old one."""
    model = loaded_model(build, torch.float32)
    pool = Pool(torch.float32)
    model.write_target_hidden_kv(pool=pool, **rows("features", torch.float32))
    old = [values.clone() for values in pool.values]
    changed = {name: t * 2 if ".v_proj." in name else t for name, t in checkpoint(automodel()).items()}
    model.load_weights(changed.items())
    model.write_target_hidden_kv(pool=pool, **rows("features", torch.float32))
    slots = rows("features", torch.float32)["cache_loc"]
    for values, before in zip(pool.values, old, strict=True):
        torch.testing.assert_close(values[slots], before[slots] * 2, rtol=1e-5, atol=1e-5)


def test_a_slower_backend_is_worth_a_warning(build, caplog) -> None:
    """Once an op, not once a layer: a machine whose compiler is missing would be slow and say it in passing."""
    model = loaded_model(build, torch.float32)
    model.bind_pool(Pool(torch.float32))
    for op in ("context_kv", "qk_norm_rope"):
        (record,) = [each for each in caplog.records if f"{op} runs as torch" in each.getMessage()]
        assert record.levelname == "WARNING" and "host: " in record.getMessage()
        assert "dtype torch.float32 is not covered" in record.getMessage()


def test_a_pool_that_no_backend_covers_goes_to_sglang(build, caplog) -> None:
    """Refused is not wrong: the server runs, and the log says why ours does not."""
    model = loaded_model(build, torch.float32)
    description = model.bind_pool(Pool(torch.bfloat16))
    assert description == "context_kv=SGLang's own, qk_norm_rope=SGLang's own, projection=stacked"
    assert model._write_context is None
    assert "forward" not in vars(model.layers[0].self_attn)
    assert "pool dtype torch.bfloat16 differs from kv dtype torch.float32" in caplog.text


@pytest.mark.parametrize("layout", ["hnd", "vectorized_5d", "page_major"])
def test_another_pool_layout_is_refused_and_never_mis_addressed(build, caplog, layout: str) -> None:
    """SGLang's switches give pools whose buffers are no [slots, H, D]; our ops would write into other tokens' rows."""
    pool = Pool(torch.float32)
    pool.kv_cache_layout = layout
    description = loaded_model(build, torch.float32).bind_pool(pool)
    assert description.startswith("context_kv=SGLang's own, qk_norm_rope=SGLang's own")
    assert f"pool layout {layout} is not covered" in caplog.text


@pytest.mark.parametrize("kind", ["mxfp8", "fp4"])
def test_a_pool_with_scales_beside_its_values_is_refused(build, caplog, kind: str) -> None:
    """An mxfp8 pool's data looks like plain fp8; its block scales would stay zero, and so would every K and V read."""
    stored = torch.float8_e4m3fn if kind == "mxfp8" else torch.uint8
    pool = Pool(torch.float32)
    pool.keys, pool.values = ([buffer.to(stored) for buffer in buffers] for buffers in (pool.keys, pool.values))
    if kind == "mxfp8":
        pool.k_scale_buffer = [torch.zeros(SLOTS, 2, 1)] * 2
    else:
        pool.is_quantized_kv_cache = True
    model = loaded_model(build, torch.float32)
    assert model.bind_pool(pool).startswith("context_kv=SGLang's own, qk_norm_rope=SGLang's own")
    assert "forward" not in vars(model.layers[0].self_attn)
    assert "pool layout block_scaled is not covered" in caplog.text


def test_sglang_s_block_scaled_pools_are_known_by_what_we_look_for() -> None:
    """Both attributes are SGLang's; a pool of plain values has neither."""
    from sglang.srt.mem_cache import memory_pool

    assert isinstance(memory_pool.MHATokenToKVPool.is_quantized_kv_cache, property)
    assert "self.k_scale_buffer = [" in inspect.getsource(memory_pool.MHATokenToKVPoolMXFP8._create_buffers)


def test_a_backend_asked_for_by_name_never_falls_back(build, monkeypatch) -> None:
    """Whoever benchmarks a backend must not measure another."""
    monkeypatch.setenv(CONTEXT_KV_VARIABLE, "triton")
    with pytest.raises(NoBackend, match="triton"):
        loaded_model(build, torch.float32).bind_pool(Pool(torch.float32))


# --- pieces ----------------------------------------------------------------------------------------------------------


def test_the_registry_finds_the_class_under_the_name_that_checkpoints_carry() -> None:
    """SGLang registers EntryClass by its name; another name leaves its own class in place."""
    assert minimax_m3_dspark.EntryClass.__name__ == "DSparkMiniMaxDraftModel"
    names = {entry.__name__ for entry in minimax_m3.EntryClass}
    assert names == {"MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"}


def target(captured: bool, last_rank: bool = True) -> SimpleNamespace:
    hidden = ("hidden", ["captured"]) if captured else "hidden"
    return SimpleNamespace(
        model=lambda *args: hidden,
        pp_group=SimpleNamespace(is_last_rank=last_rank),
        logits_processor=lambda *args: args,
        lm_head="head",
    )


def test_the_text_only_target_hands_on_what_it_captured() -> None:
    """SGLang's own class unpacks two values of every batch; an idle one gives one."""
    forward = MiniMaxM3SparseForCausalLM.forward
    assert forward(target(True), "ids", "positions", "batch") == ("ids", "hidden", "head", "batch", ["captured"])
    assert forward(target(False), "ids", "positions", "batch") == ("ids", "hidden", "head", "batch", None)
    assert forward(target(False, last_rank=False), "ids", "positions", "batch") == "hidden"


def test_the_text_only_target_captures_the_outputs_of_the_layers_asked_for() -> None:
    """Layer L's output is the input of layer L + 1: off by one, every feature is a layer early."""
    layers = [SimpleNamespace() for _ in range(4)]
    model = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=True), model=SimpleNamespace(layers=layers, layers_to_capture=[])
    )
    MiniMaxM3SparseForCausalLM.set_dspark_layers_to_capture(model, [0, 3])
    assert model.model.layers_to_capture == [1, 4]
    assert [layer._is_layer_to_capture for layer in layers] == [False, True, False, False]
    with pytest.raises(ValueError, match="existing target layers"):
        MiniMaxM3SparseForCausalLM.set_dspark_layers_to_capture(model, [4])


def test_a_tied_target_has_its_embedding_for_a_head(monkeypatch) -> None:
    """SGLang builds a head of its own whatever the config says: left unset, every answer would be noise."""
    theirs = minimax_m3.minimax_m3.MiniMaxM3SparseForCausalLM

    def load(self, weights) -> None:
        tables = {"model.embed_tokens.weight": self.model.embed_tokens, "lm_head.weight": self.lm_head}
        for name, weight in weights:
            tables[name].weight.data = weight

    monkeypatch.setattr(theirs, "load_weights", load)
    embedding, head = torch.randn(8, 4), torch.randn(8, 4)

    def loaded(tied: bool, **tensors: torch.Tensor) -> torch.Tensor:
        model = object.__new__(MiniMaxM3SparseForCausalLM)
        torch.nn.Module.__init__(model)
        model.config = SimpleNamespace(tie_word_embeddings=tied)
        model.model = SimpleNamespace(embed_tokens=torch.nn.Embedding(8, 4))
        model.lm_head = torch.nn.Linear(4, 8, bias=False)
        model.load_weights([("model.embed_tokens.weight", embedding), *tensors.items()])
        return model.lm_head.weight.data

    assert torch.equal(loaded(True), embedding)
    assert not torch.equal(loaded(False), embedding)
    # Some exports say tied and carry a head all the same: what is there is what was trained.
    assert torch.equal(loaded(True, **{"lm_head.weight": head}), head)
