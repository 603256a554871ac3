"""What speaks against starting: looked at before a server takes minutes to load, and where it would fail silently.

The doctor's own checks, asked of the environment and the arguments that the server will have, and what depends on both
the target and the machine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sglang_dspark.checkpoints.config import flatten, parse_draft_config
from sglang_dspark.checkpoints.errors import CheckpointError
from sglang_dspark.checkpoints.files import read_config
from sglang_dspark.doctor import checkpoint_pair, host, switches
from sglang_dspark.doctor.findings import Case, Finding, problem, warning
from sglang_dspark.launch import arguments as options
from sglang_dspark.launch.arguments import BadArguments, Given
from sglang_dspark.launch.machine import Machine
from sglang_dspark.serving import verify_support

# The keys by which SGLang knows a target that carries its draft (`checkpoint_bundles_dspark_draft`), and the folder of
# one that lies beside it.
_BUNDLED_KEYS = ("dspark_block_size", "dspark_markov_rank", "dspark_noise_token_id", "dspark_target_layer_ids")
_DRAFT_FOLDER = "dspark"


def draft_of(given: Given) -> str:
    """Where the draft is: as given, or where SGLang would find it beside its target.

    Raises:
        BadArguments: no target, another algorithm, no draft, or one that is not a checkpoint of its own.
    """
    target = given.value(options.MODEL)
    if not target:
        raise BadArguments("asked for --model-path, found none; name the folder or repository of MiniMax-M3")
    algorithm = given.value(options.ALGORITHM)
    if algorithm is not None and algorithm.upper() != "DSPARK":
        raise BadArguments(
            f"asked for DSPARK, found --speculative-algorithm {algorithm}; leave it out, or start "
            "python -m sglang.launch_server yourself"
        )
    if draft := given.value(options.DRAFT):
        return draft
    folder = Path(target)
    if not folder.is_dir():
        return "" if _is_repository(target) else target
    if (folder / _DRAFT_FOLDER / "config.json").is_file():
        return str(folder / _DRAFT_FOLDER)
    config = flatten(read_config(folder, "target"))
    if any(config.get(key) is not None for key in _BUNDLED_KEYS):
        raise BadArguments(
            f"asked for --speculative-draft-model-path, found a draft among the tensors of {target} itself; take it "
            f"out with sglang-dspark convert {target} DRAFT --to released, and name DRAFT"
        )
    raise BadArguments(
        f"asked for --speculative-draft-model-path, found none, and no draft inside {target}; name the draft's folder "
        "(sglang-dspark demo --path prints one with a small pair)"
    )


def draft_fits(draft: str) -> Callable[[int], bool]:
    """Whether a draft can be split over so many ranks; yes for what cannot be read, which `check` reports."""

    @functools.cache
    def fits(ranks: int) -> bool:
        if not draft:  # among the files that SGLang will fetch
            return True
        try:
            config = parse_draft_config(read_config(Path(draft)), draft)
        except CheckpointError:
            return True
        return not config.problems_with_tensor_parallel(ranks)

    return fits


def check(case: Case, given: Given, draft: str, machine: Machine) -> Iterator[Finding]:
    """Every finding; problems among them mean that the server would not start, or not as asked."""
    yield from host.check_sglang(case)
    yield from host.check_entry_point(case)
    yield from _machine(machine, case)
    yield from switches.judge(machine.platform, case.environment)
    target = str(given.value(options.MODEL))
    missing = [finding for what, path in (("target", target), ("draft", draft)) for finding in _folder(what, path)]
    yield from missing
    if Path(target).is_dir():
        yield from _verification(machine, case.environment, Path(target))
    if not missing and Path(target).is_dir() and Path(draft).is_dir():
        pair = Case(case.environment, Path(target), Path(draft), progress=case.progress)
        yield from checkpoint_pair.check(pair)
        yield from _ranks(given, Path(draft))


def _machine(machine: Machine, case: Case) -> Iterator[Finding]:
    if machine.platform.name == "cpu" and not case.cpu_engine:
        remedy = "check the driver, or export SGLANG_USE_CPU_ENGINE=1 to serve on the CPU"
        yield problem("platform", "no GPU that torch can use, and the CPU was not asked for", remedy)


def _folder(what: str, path: str) -> Iterator[Finding]:
    """A folder that is not there; a repository's name is SGLang's to fetch."""
    if path and not Path(path).is_dir():
        if _is_repository(path):
            remedy = "look at the server's log for it; sglang-dspark doctor checks local folders"
            yield warning(what, f"{path} is no folder here, so SGLang fetches it, and it is checked then", remedy)
        else:
            yield problem(what, f"no such folder: {path}", "check the path")


def _is_repository(path: str) -> bool:
    """Whether a path that does not exist can be a repository's name on the hub: owner/name."""
    return path.count("/") == 1 and not path.startswith((".", "~", "/")) and not path.endswith("/")


def _verification(machine: Machine, environment: Mapping[str, str], target: Path) -> Iterator[Finding]:
    try:
        config = flatten(read_config(target, "target"))
    except CheckpointError:
        return  # The lint says so.
    reason = verify_support.refusal(
        machine.platform,
        sparse=any((config.get("sparse_attention_config") or {}).get("sparse_attention_freq") or ()),
        native_nvfp4=_native_nvfp4(machine, config.get("quantization_config") or {}),
        verify_mode=switches.Values(environment).text("SGLANG_RAGGED_VERIFY_MODE"),
    )
    if reason:
        yield problem("verification", reason, "the server would end with this after it has loaded the weights")


def _native_nvfp4(machine: Machine, quantization: Mapping[str, Any]) -> bool:
    """As SGLang decides it: the experts' format on a Blackwell card (`model_overrides.minimax_m3`)."""
    packed = quantization.get("moe_quant_format") == "nvfp4-pack-quantized"
    return packed and machine.platform.arch.startswith("sm_10")


def _ranks(given: Given, draft: Path) -> Iterator[Finding]:
    asked = given.value(options.TENSOR_PARALLEL)
    if asked is None:
        return
    if not asked.isdecimal() or not int(asked):
        yield problem(options.TENSOR_PARALLEL.name, repr(asked), "give a whole number", asked="the number of ranks")
        return
    try:
        config = parse_draft_config(read_config(draft), str(draft))
    except CheckpointError:
        return  # The lint says so.
    for line in config.problems_with_tensor_parallel(int(asked)):
        found, _, remedy = line.rpartition("; ")
        yield problem(options.TENSOR_PARALLEL.name, found, remedy)
