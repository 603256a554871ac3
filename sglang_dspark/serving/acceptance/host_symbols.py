"""What the acceptance parts rely on in SGLang, for `serving/contract.py`: path, why, parameter names, and no others."""

from __future__ import annotations

_SRT = "sglang.srt."
_DSPARK = _SRT + "speculative.dspark_components."
_SCHEDULER = _SRT + "managers.scheduler_components."

HOST_SYMBOLS: tuple[tuple[str, str, tuple[str, ...], bool], ...] = (
    (_SRT + "plugins.hook_registry:HookRegistry.apply_hooks", "the scheduler's hooks are added late", (), False),
    (_SRT + "plugins.hook_registry:HookRegistry._patched", "whether a hook has taken", (), False),
    (
        _SCHEDULER + "batch_result_processor:SchedulerBatchResultProcessor._resolve_spec_v2_tokens",
        "decode steps are counted",
        ("self", "result", "batch"),
        True,
    ),
    (_SCHEDULER + "batch_result_processor:SchedulerBatchResultProcessor.metrics_reporter", "who reports", (), False),
    (_SCHEDULER + "batch_result_processor:SchedulerBatchResultProcessor.metrics_collector", "labels", (), False),
    (
        _SCHEDULER + "output_streamer:SchedulerOutputStreamer.stream_output",
        "counts are exported before answers leave",
        ("self", "reqs", "return_logprob", "skip_req"),
        True,
    ),
    (
        _SRT + "managers.utils:GenerationBatchResult.copy_to_cpu",
        "confidences are copied along",
        ("self", "return_logprob", "return_hidden_states"),
        True,
    ),
    (_SRT + "managers.utils:GenerationBatchResult.num_correct_drafts_per_req_cpu", "accepted proposals", (), False),
    (_SRT + "managers.utils:GenerationBatchResult.cap_lens", "verify lengths", (), False),
    (
        _SRT + "managers.tokenizer_manager:TokenizerManager._calculate_spec_decoding_metrics",
        "meta_info by position",
        ("self", "meta_info", "recv_obj", "i"),
        True,
    ),
    (_SRT + "managers.io_struct:BatchTokenIDOutput.spec_correct_drafts_histogram", "meta_info by position", (), False),
    (_SRT + "managers.io_struct:BatchTokenIDOutput.spec_cap_lens_histogram", "meta_info by position", (), False),
    (
        _SRT + "managers.schedule_batch:Req.update_spec_cap_lens_histogram",
        "rounds without drafts in meta_info",
        ("self", "cap_len"),
        False,
    ),
    (_SRT + "sampling.sampling_params:SamplingParams.custom_params", "a request's own setting", (), False),
    (
        _SRT + "observability.metrics_collector:SchedulerMetricsCollector.__init__",
        "labels of the metrics",
        ("labels",),
        False,
    ),
    (_SRT + "observability.metrics_collector:_StatLoggerDIMixin._counter_cls", "class of the counters", (), False),
    (
        _SRT + "observability.metrics_collector:SchedulerMetricsCollectorContext.current_scheduler_metrics_enabled",
        "who reports",
        (),
        False,
    ),
    (_SRT + "runtime_context:get_observability", "whether metrics are on", (), False),
    (_SRT + "environ:Envs.SGLANG_SIMULATE_ACC_LEN", "nothing to judge under it", (), False),
    (_SRT + "utils.common:async_d2h", "confidences go to the host without a wait", ("tensor",), False),
    (_SRT + "utils.common:async_h2d", "stopped requests' mask", ("args", "dtype", "device"), False),
    (
        _DSPARK + "dspark_draft:DraftBlockProposer.propose",
        "stands behind a gate",
        (
            "self",
            "batch",
            "draft_input",
            "verify_window",
            "bs",
            "device",
            "target_model",
            "sampling_info",
            "anchor_prepared",
        ),
        True,
    ),
    (
        _DSPARK + "dspark_draft:DraftBlockProposer.draft_block_ids_view",
        "anchors of a step without drafts",
        ("self", "bs", "device"),
        False,
    ),
    (_DSPARK + "dspark_draft:DraftProposal.verify_ids", "a proposal is remade", (), False),
    (_DSPARK + "dspark_draft:DraftBlockResult.greedy_draft", "placeholders verify as one token each", (), False),
    (_DSPARK + "dspark_draft:resolve_draft_params", "temperatures", ("sampling_info", "bs", "device"), False),
    (
        _DSPARK + "dspark_planner:DSparkVerifyPlanner.schedule_layout",
        "stands behind a gate",
        (
            "self",
            "req_pool_indices",
            "prefix_lens",
            "device",
            "confidence",
            "budget",
            "global_num_reqs",
            "dp_tier_num_tokens",
        ),
        True,
    ),
    (_DSPARK + "dspark_planner:DSparkVerifyPlanner.is_compact_mode", "what can be left out", (), False),
    (_DSPARK + "dspark_planner:DSparkVerifyPlanner.carries_confidence", "a head", (), False),
    (
        _DSPARK + "dspark_planner:verify_layout_grid",
        "shorter layouts",
        ("verify_lens_cpu", "ragged_verify_mode", "model_runner"),
        False,
    ),
    (
        _SRT + "speculative.ragged_verify:RaggedVerifyLayout.from_verify_lens",
        "shorter layouts",
        ("verify_lens_cpu", "device", "grid"),
        False,
    ),
    (_SRT + "speculative.ragged_verify:ragged_verify_compact_enabled", "what is verified", (), False),
)
