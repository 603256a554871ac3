"""What SGLang calls once in every process: put this plugin's parts behind SGLang's own names.

The algorithm keeps its builtin name `dspark`, which SGLang compares in many places. Our worker and models take the
builtin ones' places behind it; everything else of SGLang runs as it is.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from sglang_dspark.serving import contract, hf_config, request_rows, requests, stop_conditions
from sglang_dspark.serving.acceptance import meta_info

logger = logging.getLogger(__name__)

MODEL_PACKAGE = "sglang_dspark.models"
_MODEL_PACKAGE_VARIABLE = "SGLANG_EXTERNAL_MODEL_PACKAGE"


def register() -> None:
    """Entry point of the group `sglang.srt.plugins`.

    Raises:
        ContractMismatch: the installed SGLang is not the one this plugin knows; nothing was registered. SGLang logs
            it and goes on with its builtin DSPARK.
    """
    on_cpu = cpu_engine_asked_for()
    contract.check(cpu_engine=on_cpu)
    version = contract.installed_version()
    if version != contract.SGLANG_VERSION:
        logger.warning(
            "sglang-dspark is tested with SGLang %s; %s agrees in all it relies on.", contract.SGLANG_VERSION, version
        )
    hf_config.register()
    _register_models()
    if on_cpu:
        from sglang_dspark.serving.cpu import engine

        engine.register()

    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in (
        (
            "sglang.srt.arg_groups.speculative_hook.handle_speculative_decoding",
            _around_handle_speculative_decoding,
        ),
        ("sglang.srt.arg_groups.speculative_hook._handle_dspark", _around_handle_dspark),
        ("sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker", _around_create_worker),
        ("sglang.srt.speculative.dflash_utils.validate_dflash_request", requests.around_validate_dflash_request),
        (
            "sglang.srt.managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics",
            meta_info.around_calculate,
        ),
        (
            "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len",
            request_rows.around_extra_context_len,
        ),
        (
            "sglang.srt.managers.schedule_batch.Req.update_finish_state",
            stop_conditions.around_update_finish_state,
        ),
    ):
        HookRegistry.register(target, hook, HookType.AROUND)


def cpu_engine_asked_for() -> bool:
    """Whether this process runs SGLang's CPU engine; the variable is SGLang's own switch for it."""
    return os.environ.get("SGLANG_USE_CPU_ENGINE") == "1"


def _register_models() -> None:
    """Add our model classes in front of SGLang's.

    Before SGLang has built its registry, its own variable does it, child processes included, and SGLang's other
    models stay unimported until one is asked for (a start-up several seconds shorter).
    """
    asked = os.environ.get(_MODEL_PACKAGE_VARIABLE)
    if asked in (None, "", MODEL_PACKAGE) and "sglang.srt.models.registry" not in sys.modules:
        os.environ[_MODEL_PACKAGE_VARIABLE] = MODEL_PACKAGE
        return
    from sglang.srt.models.registry import ModelRegistry, import_model_classes

    if asked == MODEL_PACKAGE:
        # The registry took our classes when it was built, but only warns where an import failed.
        ModelRegistry.models.update(import_model_classes(MODEL_PACKAGE, strict=True))
    else:
        ModelRegistry.register(MODEL_PACKAGE, overwrite=True, strict=True)


def _around_handle_speculative_decoding(original: Callable[[Any], None], server_args: Any) -> None:
    """Refuse what cannot be served, and check a draft that was named before SGLang opens it.

    SGLang ends with an error of its own at a draft that it cannot read.
    """
    from sglang.srt.arg_groups.overrides import resolving_view

    arguments = resolving_view(server_args)
    if (arguments.speculative_algorithm or "").upper() == "DSPARK":
        _check_limits(server_args)
        if arguments.speculative_draft_model_path:
            _check_draft(server_args)
    original(server_args)


def _check_limits(server_args: Any) -> None:
    """Raise where a MiniMax-M3 target is to be served in a way that its draft does not have."""
    from sglang.srt.arg_groups.overrides import model_config_of, resolving_view
    from sglang.srt.utils.common import is_hip

    from sglang_dspark.serving import draft_check, limits

    model_config = model_config_of(server_args)
    if draft_check.is_ours(model_config.hf_config):
        limits.check(resolving_view(server_args), model_config.dtype, e5m2_means_e4m3=is_hip())


def _check_draft(server_args: Any) -> None:
    """Raise unless a MiniMax-M3 target's draft can be served; other targets' drafts are not ours to check."""
    from sglang.srt.arg_groups.overrides import model_config_of, resolving_view

    from sglang_dspark.serving import draft_check

    arguments, target_config = resolving_view(server_args), model_config_of(server_args).hf_config
    if draft_check.is_ours(target_config):
        draft_check.check_draft(
            arguments.speculative_draft_model_path,
            arguments.speculative_draft_model_revision,
            draft_check.target_facts(target_config),
            # Ranks that share one copy of the attention heads.
            arguments.tp_size // (arguments.attn_dp_size * arguments.attn_cp_size),
        )


def _around_handle_dspark(original: Callable[[Any], None], server_args: Any) -> None:
    """SGLang's own handling of the DSPARK arguments, and what a MiniMax-M3 draft needs beside it."""
    from sglang.srt.arg_groups.overrides import declare_resolution, model_config_of, resolving_view

    from sglang_dspark.serving import draft_check

    resolve = original
    if cpu_engine_asked_for():
        from sglang_dspark.serving.cpu.arguments import as_accelerator

        resolve = as_accelerator(original)

    arguments = resolving_view(server_args)
    named = arguments.speculative_draft_model_path is not None
    resolve(server_args)
    if not draft_check.is_ours(model_config_of(server_args).hf_config):
        return None
    if not named:
        # SGLang has found it beside the target.
        _check_draft(server_args)
    load_format = arguments.speculative_draft_load_format or arguments.load_format
    declare_resolution(
        server_args, "sglang_dspark", speculative_draft_load_format=draft_check.safetensors_only(load_format)
    )
    # Without this the draft would take over the target's --quantization; its own config says what it is.
    if not arguments._speculative_draft_quantization_explicitly_set:
        declare_resolution(server_args, "sglang_dspark", speculative_draft_model_quantization=None)
    return None


def _around_create_worker(original: Callable[..., Any], algorithm: Any, server_args: Any) -> Any:
    """Our worker in the builtin DSPARK worker's place.

    A hook here, and not a replacement of the class itself, keeps the worker's imports out of the processes that run
    no model, and leaves the builtin class to be subclassed under its own name.
    """
    worker = original(algorithm, server_args)
    if not algorithm.is_dspark():
        return worker
    from sglang_dspark.serving.acceptance import hooks

    hooks.install()
    if cpu_engine_asked_for():
        from sglang_dspark.serving.cpu.worker import CpuDSparkWorker

        return CpuDSparkWorker
    from sglang_dspark.serving.worker import DSparkWorker

    return DSparkWorker
