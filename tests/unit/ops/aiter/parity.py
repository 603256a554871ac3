"""The parity cases of both ops for AITER's functions: the same problems, held to the bounds that the backends state."""

from __future__ import annotations

from dataclasses import replace

import torch

from sglang_dspark import platforms
from sglang_dspark.ops.aiter.trial import outside
from sglang_dspark.ops.context_kv import aiter_backend as context_kv
from sglang_dspark.ops.context_kv import aiter_candidates as candidates
from sglang_dspark.ops.context_kv import reference as context_law
from sglang_dspark.ops.context_kv.rows import written_rows
from sglang_dspark.ops.qk_norm_rope import aiter_backend as qk_norm_rope
from sglang_dspark.ops.qk_norm_rope import reference as query_law
from sglang_dspark.platforms import Platform
from tests.parity import bounds, cases
from tests.parity.qk_norm_rope import cases as query_cases
from tests.parity.qk_norm_rope import checks


def representable(multipliers: torch.Tensor) -> torch.Tensor:
    """Multipliers as a bf16 checkpoint gives them."""
    return (multipliers - 1).to(torch.bfloat16).float() + 1


def context_problem(case: cases.Case, device: str = "cpu") -> cases.Problem:
    given = cases.problem(case, device)
    tables = replace(given.tables, norm_multipliers=representable(given.tables.norm_multipliers))
    return replace(given, tables=tables)


def own_fp8(platform: Platform, case: cases.Case) -> Platform:
    """The chip whose fp8 the case's pool is in, with this platform's device."""
    arch = "gfx950" if case.pool_dtype == torch.float8_e4m3fn else "gfx942"
    return replace(platforms.describe("amd", arch), device_type=platform.device_type)


def context_covers(candidate: candidates.Candidate, case: cases.Case) -> bool:
    given = context_problem(case)
    platform = own_fp8(platforms.describe("amd", "gfx942"), case)
    spec_reasons = context_kv._spec_refusals(platform, given.spec) or candidate.refusals(given.spec)
    return not (spec_reasons or candidate.table_refusals(given.spec, given.tables))


def check_context(candidate: str, case: cases.Case, storages: list[torch.Tensor]) -> None:
    """Fail when pools differ from the law's by more than the candidate's bound."""
    law = context_problem(case)
    spec, tables = law.spec, law.tables
    slots = torch.where(law.slots < tables.num_slots, law.slots, -1)
    positions = law.positions.clamp(0, tables.num_positions - 1)
    context_law.write(spec, tables, law.kv, positions, slots, law.commit_lens)

    bound, sizes = candidates.bound_of(candidate, spec), bounds.magnitude(context_problem(case))
    # V in a bf16 pool is a copy: it is compared with the bytes that stay.
    halves = [sizes, law.kv[:, :, 1].double().abs()] if spec.pool_dtype.itemsize == 1 else [sizes]
    row = spec.num_kv_heads * spec.head_dim
    for layer, of_layer in enumerate(slots.expand(spec.num_layers, -1)):
        tokens = written_rows(of_layer, law.commit_lens).nonzero()[:, 0]
        for half, size in enumerate(halves):
            scale = ((spec.k_scales, spec.v_scales)[half] or (1.0,) * spec.num_layers)[layer]
            found, expected = storages[2 * layer + half], law.storages[2 * layer + half]
            places = of_layer[tokens]
            rows = [as_bytes(x[:, :row])[places].view(x.dtype) for x in (found, expected)]
            shape = (-1, spec.num_kv_heads, spec.head_dim)
            wrong = outside(bound, *(x.view(shape) for x in rows), size[tokens, layer], scale)
            assert wrong == 0, f"{wrong} elements of {'KV'[half]} out of bounds in layer {layer}"
            for storage in (found, expected):
                as_bytes(storage[:, :row])[places] = 0
    for index, (found, expected) in enumerate(zip(storages, law.storages, strict=True)):
        same = torch.equal(as_bytes(found), as_bytes(expected))
        assert same, f"a byte of {'KV'[index % 2]} in layer {index // 2} is neither the law's nor what it was"


def as_bytes(rows: torch.Tensor) -> torch.Tensor:
    return rows.view(torch.uint8)


def query_problem(case: query_cases.Case, device: str = "cpu") -> query_cases.Problem:
    given = query_cases.problem(case, device)
    multipliers = {
        name: representable(getattr(given.tables, name)) for name in ("q_norm_multipliers", "k_norm_multipliers")
    }
    return replace(given, tables=replace(given.tables, **multipliers))


def query_covers(case: query_cases.Case) -> bool:
    given = query_problem(case)
    return bool(given.tables.pools) and not qk_norm_rope._spec_refusals(given.spec)


def check_query(case: query_cases.Case, storages: dict[str, torch.Tensor]) -> None:
    """Fail when Q or K is out of bounds, or anything else is not what follows from them."""
    law, given = query_problem(case), query_problem(case)
    slots = law.slots
    if slots is not None:
        slots = torch.where(slots < law.tables.num_slots, slots, -1)
    query_law.run(law.spec, law.tables, law.qkv, law.positions.clamp(0, law.tables.num_positions - 1), slots)
    width = given.qkv.shape[1]
    found, expected = (
        x["qkv"][:, :width].unflatten(1, (-1, given.spec.head_dim))[:, : -given.spec.num_kv_heads]
        for x in (storages, law.storages)
    )
    assert outside(qk_norm_rope.BOUND, found, expected, checks.magnitude(given)) == 0
    checks.check_rest(given, storages)
