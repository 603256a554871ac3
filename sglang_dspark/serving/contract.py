"""Every SGLang symbol this plugin overrides, wraps, calls or reads, and the check that they are what it expects.

SGLang has no stable plugin interface below its entry points, and it swallows a plugin's exceptions, so a moved symbol
would show only as lost speed or wrong tokens. `check()` runs before anything is registered: on a mismatch nothing is
registered and one message names the symbols, the SGLang version and what to do.

The check reads SGLang's source and imports nothing: it runs in every SGLang process at start-up, before SGLang has
finished importing itself.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sglang_dspark.serving.acceptance import host_symbols as acceptance

# The release this plugin is written against and tested with.
SGLANG_VERSION = "0.5.23"


class ContractMismatch(RuntimeError):
    """The installed SGLang differs in a symbol this plugin relies on; nothing was registered."""


@dataclass(frozen=True)
class HostSymbol:
    """One symbol of SGLang.

    Attributes:
        path: `module:qualified.name`.
        why: what the plugin does with it.
        parameters: parameter names that must be there (functions only).
        exact: the parameter names must be these and no others, because the plugin overrides the function.
    """

    path: str
    why: str
    parameters: tuple[str, ...] = ()
    exact: bool = False


_SPEC = "sglang.srt.speculative."
_ATTENTION = "sglang.srt.layers.attention."
_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater:WeightUpdater."
_WRITE = ("self", "target_hidden", "pool", "positions", "cache_loc", "cache_loc_2d", "commit_lens")

HOST_SYMBOLS = (
    HostSymbol("sglang.srt.plugins.hook_registry:HookRegistry.register", "adds hooks", ("target", "hook", "hook_type")),
    HostSymbol("sglang.srt.plugins.hook_registry:HookType.AROUND", "kind of the hooks"),
    HostSymbol("sglang.srt.models.registry:_ModelRegistry.register", "adds models", ("overwrite", "strict")),
    HostSymbol("sglang.srt.environ:Envs.SGLANG_EXTERNAL_MODEL_PACKAGE", "adds models before the registry is built"),
    HostSymbol(
        "sglang.srt.arg_groups.speculative_hook:handle_speculative_decoding",
        "a named draft is checked before it is opened",
        ("server_args",),
        True,
    ),
    HostSymbol(
        "sglang.srt.arg_groups.speculative_hook:_handle_dspark",
        "CPU and draft quantisation; a draft found beside the target is checked",
        ("server_args",),
        True,
    ),
    HostSymbol("sglang.srt.arg_groups.speculative_hook:resolving_view", "device as the arguments see it"),
    HostSymbol("sglang.srt.utils.common:is_hip", "what fp8_e5m2 means"),
    HostSymbol(
        "sglang.srt.mem_cache.allocation_sizing:get_req_to_token_extra_context_len",
        "room for the windows at the end of the context",
    ),
    HostSymbol("sglang.srt.mem_cache.allocation_sizing:get_alloc_reserve_per_decode", "how much room"),
    HostSymbol("sglang.srt.mem_cache.allocation_sizing:get_alloc_page_size", "how much room"),
    HostSymbol("sglang.srt.arg_groups.overrides:declare_resolution", "draft's own quantisation", ("server_args",)),
    HostSymbol("sglang.srt.arg_groups.model_override_base:model_config_of", "the target's config", ("server_args",)),
    HostSymbol(_SPEC + "spec_info:SpeculativeAlgorithm.create_worker", "our worker", ("self", "server_args"), True),
    HostSymbol(
        _SPEC + "dspark_components.dspark_worker_v2:DSparkWorkerV2.__init__",
        "our worker's base",
        ("self", "server_args", "gpu_id", "nccl_port", "target_worker", "draft_worker_cls"),
        True,
    ),
    HostSymbol(
        _SPEC + "dspark_components.dspark_worker_v2:DSparkWorkerV2.alloc_memory_pool",
        "the writer is chosen when the pool exists",
        ("self", "memory_pool_config", "req_to_token_pool", "token_to_kv_pool_allocator"),
        True,
    ),
    HostSymbol(
        _SPEC + "dspark_components.dspark_worker_v2:DSparkWorkerV2._forward_decode",
        "CPU tensors have no streams",
        ("self", "batch", "on_publish", "grammar_barrier", "coordination_plan"),
        True,
    ),
    HostSymbol(
        _UPDATER + "update_weights_from_disk",
        "new weights go where they belong",
        ("self", "model_path", "load_format", "weight_name_filter", "recapture_cuda_graph"),
        exact=True,
    ),
    HostSymbol(
        _UPDATER + "update_weights_from_tensor", "pushed weights", ("self", "named_tensors", "load_format"), exact=True
    ),
    HostSymbol(_UPDATER + "load_weights_from_distributed", "pushed weights", ("self", "named_tensors"), exact=True),
    HostSymbol(_UPDATER + "update_weights_from_ipc", "pushed weights", ("self", "recv_req"), exact=True),
    HostSymbol(_UPDATER + "model_config", "the draft's folder, to go back to"),
    HostSymbol("sglang.srt.configs.minimax_vl:configure_minimax_m3_dspark", "reads the released layout", ("config",)),
    HostSymbol(
        "sglang.srt.utils.hf_transformers.config:HfModelConfigParser.parse",
        "a draft's config is read as SGLang will read it",
        ("model", "trust_remote_code", "revision"),
    ),
    HostSymbol("sglang.srt.utils.hf_transformers.common:get_rope_config", "where SGLang finds rope_theta", ("config",)),
    HostSymbol("sglang.srt.arg_groups.fields.spec:Spec.speculative_draft_load_format", "drafts are safetensors alone"),
    HostSymbol(
        "sglang.srt.model_loader.loader:DefaultModelLoader.Source.fall_back_to_pt", "drafts are safetensors alone"
    ),
    HostSymbol(
        "sglang.srt.models.dspark_minimax:DSparkMiniMaxDraftModel.load_weights", "overridden", ("self", "weights"), True
    ),
    HostSymbol("sglang.srt.models.dspark_minimax:MiniMaxDraftBackbone.project_target_hidden", "fc and its norm"),
    HostSymbol(
        "sglang.srt.models.dspark_minimax:DSparkMiniMaxAttention.kv_proj_only", "context K/V", ("hidden_states",)
    ),
    HostSymbol(
        "sglang.srt.models.dspark:DSparkDraftMixin.write_target_hidden_kv",
        "the seam for the context KV writer",
        (*_WRITE, "target_hidden_is_projected"),
        True,
    ),
    HostSymbol(
        "sglang.srt.models.dspark:DSparkDraftMixin.attach_shared_modules",
        "the draft's copies are compared with the target's tables",
        ("self", "embed_tokens", "lm_head"),
        True,
    ),
    HostSymbol(
        "sglang.srt.layers.layernorm:GemmaRMSNorm.forward_hip",
        "the draft's norms are fused on ROCm",
        ("self", "x", "residual", "post_residual_addition"),
        exact=True,
    ),
    HostSymbol(
        "sglang.kernels.ops.layernorm.minimax_m3_rmsnorm:gemma_rmsnorm",
        "the draft's norms are fused on ROCm",
        ("x", "weight", "eps"),
        exact=True,
    ),
    HostSymbol(
        "sglang.kernels.ops.layernorm.minimax_m3_rmsnorm:gemma_fused_add_rmsnorm", "the draft's norms are fused on ROCm"
    ),
    HostSymbol("sglang.srt.speculative.dflash_utils:can_dflash_slice_qkv_weight", "stacked projection", ("qkv_proj",)),
    HostSymbol(
        "sglang.srt.speculative.dflash_utils:validate_dflash_request",
        "requests that would not be lossless are refused",
        ("req", "enable_overlap"),
        exact=True,
    ),
    HostSymbol(
        "sglang.srt.managers.schedule_batch:Req.update_finish_state",
        "answers end at their first stop condition",
        ("self", "new_accepted_len"),
        exact=True,
    ),
    HostSymbol("sglang.srt.configs.model_config:is_minimax_sparse", "targets with block-sparse layers", ("config",)),
    HostSymbol("sglang.srt.configs.model_config:get_minimax_sparse_attention_config", "which layers", ("config",)),
    HostSymbol("sglang.srt.configs.model_config:get_minimax_sparse_layer_ids", "which layers", ("sparse_cfg",)),
    HostSymbol("sglang.srt.configs.model_config:uses_minimax_m3_nvfp4_native_stack", "has verify", ("quantization",)),
    HostSymbol(_SPEC + "ragged_verify:read_ragged_verify_mode", "uneven widths on ROCm"),
    HostSymbol(_SPEC + "dspark_components.dspark_planner:DSparkVerifyPlanner.should_run_compact", "even in cap-accept"),
    HostSymbol(
        "sglang.srt.mem_cache.memory_pool:MHATokenToKVPool.is_quantized_kv_cache",
        "pools with scales beside their values are left to SGLang",
    ),
    HostSymbol("sglang.srt.mem_cache.memory_pool:MHATokenToKVPoolMXFP8", "such a pool, known by its k_scale_buffer"),
    HostSymbol("sglang.srt.runtime_context:get_parallel", "tensor-parallel size"),
    HostSymbol("sglang.srt.runtime_context:get_spec", "which algorithm runs"),
    HostSymbol(
        "sglang.srt.models.minimax_m3:MiniMaxM3SparseForCausalLM.forward",
        "text-only target",
        ("self", "input_ids", "positions", "forward_batch", "input_embeds", "pp_proxy_tensors"),
        True,
    ),
    HostSymbol(
        "sglang.srt.models.minimax_m3_vl:MiniMaxM3SparseForConditionalGeneration.set_dspark_layers_to_capture",
        "the text-only target captures the same way",
        ("self", "layer_ids"),
    ),
    *(HostSymbol(*each) for each in acceptance.HOST_SYMBOLS),
)

CPU_SYMBOLS = (
    HostSymbol(_ATTENTION + "attention_registry:register_attention_backend", "CPU attention", ("name",)),
    HostSymbol(
        _ATTENTION + "attention_registry:attn_backend_wrapper",
        "CPU block-sparse attention",
        ("runner", "full_attn_backend"),
        True,
    ),
    HostSymbol(_ATTENTION + "torch_native_backend:TorchNativeAttnBackend.init_forward_metadata", "CPU attention"),
    HostSymbol(
        _ATTENTION + "minimax_sparse_backend:MiniMaxHybridAttnBackend.__init__",
        "routes dense and sparse layers",
        ("self", "dense_backend", "sparse_backend", "sparse_layer_ids"),
    ),
    HostSymbol(_ATTENTION + "minimax_sparse_backend:MiniMaxSparseAttnBackend.__init__", "sparse settings", ("runner",)),
    HostSymbol("sglang.srt.mem_cache.memory_pool:MiniMaxSparseKVPool.set_fused_kv_index_buffer", "stores index keys"),
    HostSymbol("sglang.srt.mem_cache.memory_pool:KVWriteLoc", "where K and V are stored"),
    HostSymbol(
        "sglang.srt.mem_cache.kv_cache_configurator:KVCacheConfigurator.configure",
        "fp8 pools of the draft on CPU",
        ("self", "pre_model_load_memory"),
        exact=True,
    ),
    HostSymbol("sglang.srt.mem_cache.kv_cache_configurator:current_platform", "fp8 pools of the draft on CPU"),
    HostSymbol("sglang.srt.arg_groups.choices:add_draft_attention_backend_choices", "CPU attention for the draft"),
    HostSymbol(
        "sglang.srt.layers.moe.fused_moe_native:moe_forward_native",
        "M3's expert layout on CPU",
        ("layer", "x", "topk_output", "moe_runner_config"),
        True,
    ),
    HostSymbol(
        "sglang.kernels.ops.speculative.reject_sampling:chain_speculative_sampling_triton",
        "sampled verify on CPU",
        (
            "predicts",
            "accept_index",
            "accept_token_num",
            "candidates",
            "retrive_index",
            "retrive_next_token",
            "retrive_next_sibling",
            "uniform_samples",
            "uniform_samples_for_final_sampling",
            "target_probs",
            "draft_probs",
            "threshold_single",
            "threshold_acc",
            "deterministic",
            "block_verification",
        ),
        True,
    ),
)


def installed_version() -> str:
    """The installed SGLang's version, or 'not installed'."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def mismatches(symbols: Iterable[HostSymbol], root: Path | None = None) -> list[str]:
    """One sentence for every symbol that is not as expected.

    Args:
        symbols: what to look for.
        root: the folder of the `sglang` package; the installed one by default.
    """
    if root is None:
        root = _installed_root()
        if root is None:
            return ["the package sglang is not installed"]
    source = _Source(root)
    return [problem for symbol in symbols if (problem := source.mismatch(symbol))]


def check(*, cpu_engine: bool) -> None:
    """Raise unless every symbol this process relies on is as expected.

    Args:
        cpu_engine: the process runs SGLang's CPU engine, whose symbols are checked too.

    Raises:
        ContractMismatch: names each symbol, the installed version and the remedy.
    """
    found = mismatches(HOST_SYMBOLS + (CPU_SYMBOLS if cpu_engine else ()))
    if not found:
        return
    lines = "".join(f"\n  - {line}" for line in found)
    raise ContractMismatch(
        f"sglang-dspark was written for SGLang {SGLANG_VERSION} and registered nothing, because SGLang "
        f"{installed_version()} differs in what it relies on:{lines}\n"
        f"Install sglang=={SGLANG_VERSION}, or an sglang-dspark made for your version."
    )


def _installed_root() -> Path | None:
    spec = importlib.util.find_spec("sglang")
    locations = list(spec.submodule_search_locations or []) if spec else []
    return Path(locations[0]) if locations else None


class _Source:
    """Looks symbols up in the syntax trees of a package's files, each file parsed once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trees: dict[str, ast.Module | None] = {}

    def mismatch(self, symbol: HostSymbol) -> str:
        module, _, name = symbol.path.partition(":")
        tree = self._tree(module)
        if tree is None:
            return f"{symbol.path}: no module {module} ({symbol.why})"
        node = _find(tree, name.split("."))
        if node is None:
            return f"{symbol.path}: not found ({symbol.why})"
        if not symbol.parameters:
            return ""
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return f"{symbol.path}: asked for a function, found something else ({symbol.why})"
        arguments = node.args
        found = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        missing = [p for p in symbol.parameters if p not in found]
        added = [p for p in found if p not in symbol.parameters] if symbol.exact else []
        if missing or added:
            return f"{symbol.path}: parameters missing {missing}, new {added} ({symbol.why})"
        return ""

    def _tree(self, module: str) -> ast.Module | None:
        if module not in self.trees:
            path = self.root.joinpath(*module.split(".")[1:])
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            self.trees[module] = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else None
        return self.trees[module]


def _find(node: ast.AST, names: list[str]) -> ast.AST | None:
    """The definition, assignment or import bound to a dotted name inside a module or class body."""
    for child in getattr(node, "body", []):
        if names[0] in _bound_names(child):
            return child if len(names) == 1 else _find(child, names[1:])
    return None


def _bound_names(node: ast.AST) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    if isinstance(node, (ast.ImportFrom, ast.Import)):
        return [alias.asname or alias.name for alias in node.names]
    return []
