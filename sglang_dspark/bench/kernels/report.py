"""Kernel rows as Markdown tables: times, floor times at stated bandwidths, compiled code, emulated counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sglang_dspark.bench import rows as row_files
from sglang_dspark.bench.markdown import table
from sglang_dspark.bench.rows import Row

DEVICE, EVENT_PAIR = "device", "event_pair"
BASELINE = "sglang"
NOT_OURS = ("device_copy", BASELINE, "sglang_1_warp", "unfused")
NOT_A_SPEED = "From a CPU: this shows that the benchmark works and the backends agree. It is not a performance figure."
MEASURED = "Microseconds on the device, p50 (p20 to p80); {how}. The shares are those of {first}."
STATED = "Floor times in microseconds at the peak bandwidth that the vendor states: arithmetic, not measured."
COMPILED = (
    "Read from the code that a server would load: compiled, not run. Instructions are those in the listing, whichever "
    "way a wave goes through it. Occupancy is what the registers allow, of 8 waves a SIMD (AMD) or 64 warps a "
    "multiprocessor (NVIDIA)."
)
EMULATED = (
    "Counted by an interpreter of the compiled code: emulated, not measured. A row is one head's K, V or Q of one "
    "token; every wave is full and every row is stored."
)
# Of the case's facts, these are shown in every table's title, and the others where they vary.
TITLE_KEYS = ("pool_dtype",)
# Head of a column, figure, form.
COMPILED_COLUMNS = (
    ("vector registers", "vector_registers_count", "{:.0f}"),
    ("scalar registers", "scalar_registers_count", "{:.0f}"),
    ("spills", "spills_count", "{:.0f}"),
    ("LDS bytes", "shared_bytes", "{:.0f}"),
    ("scratch bytes", "scratch_bytes", "{:.0f}"),
    ("code bytes", "code_bytes", "{:.0f}"),
    ("instructions", "instructions_count", "{:.0f}"),
    ("vector", "vector_count", "{:.0f}"),
    ("scalar", "scalar_count", "{:.0f}"),
    ("loads", "loads_count", "{:.0f}"),
    ("stores", "stores_count", "{:.0f}"),
    ("waits, no-ops", "waits_count", "{:.0f}"),
    ("waves at a time", "waves_count", "{:.0f}"),
    ("occupancy", "occupancy_share", "{:.0%}"),
)
EMULATED_COLUMNS = (
    ("instructions a row", "row_instructions_count", "{:.1f}"),
    ("vector", "row_vector_count", "{:.1f}"),
    ("scalar", "row_scalar_count", "{:.1f}"),
    ("memory", "row_memory_count", "{:.1f}"),
    ("waits, no-ops", "row_waits_count", "{:.1f}"),
    ("bytes asked for a row", "row_asked_bytes", "{:.0f}"),
    ("vector memory instructions a wave", "wave_memory_count", "{:.1f}"),
    ("round trips", "round_trips_count", "{:.0f}"),
)


def markdown(rows: list[Row]) -> Iterator[str]:
    """The parts of one run's report."""
    if measured := [row for row in rows if row.measured]:
        yield from _measured(measured)
    for basis, head, part in UNMEASURED:
        tables: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            if not row.measured and row.how["basis"] == basis:
                tables.setdefault(_title(row), []).append(row)
        if tables:
            yield f"### {head}"
        for title, of_table in tables.items():
            yield f"#### {', '.join(title)}"
            yield part(of_table)


def _measured(rows: list[Row]) -> Iterator[str]:
    if rows[0].run.device["platform"] == "cpu":
        yield f"**{NOT_A_SPEED}**"
    if of_device := [row for row in rows if row.benchmark == DEVICE]:
        yield "\n".join(f"- {_device_line(row)}" for row in of_device)
    tables: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row.benchmark != DEVICE:
            tables.setdefault(_title(row), []).append(row)
    for title, of_table in tables.items():
        yield f"### {', '.join(title)}"
        yield _timings(of_table)


def _title(row: Row) -> tuple[str, ...]:
    if not row.measured and row.how["basis"] != row_files.STATED:
        return (row.benchmark,)
    facts = [f"{key.replace('_', ' ')} {row.case[key]}" for key in TITLE_KEYS if key in row.case]
    conditions = [f"{key} {row.how[key]}" for key in ("mode", "cache") if key in row.how]
    return row.benchmark, *facts, *conditions


def _timings(rows: list[Row]) -> str:
    subjects = list(dict.fromkeys(row.subject for row in rows))
    # Ours first, in the platform's order.
    subjects.sort(key=lambda name: NOT_OURS.index(name) + 1 if name in NOT_OURS else 0)
    first = subjects[0]
    keys, lines = _lines(rows)
    body = []
    for facts, of_line in lines.items():
        cells = [_spread(of_line[name]) if name in of_line else "" for name in subjects]
        body.append([*facts, _bytes(next(iter(of_line.values()))), *cells, *_shares(of_line, first)])
    shares = ("of copy bandwidth", "of a copy as big", "of stated peak", f"{BASELINE} / {first}")
    counts = sorted({int(row.how["repetitions"]) for row in rows if "repetitions" in row.how})
    spread = " to ".join(str(count) for count in sorted({counts[0], counts[-1]})) if counts else "unknown"
    how = f"repetitions a case: {spread}"
    if trimmed := sum(bool(row.how.get("trimmed")) for row in rows):
        how += f", trimmed by the time budget in {trimmed} of {len(rows)} cases"
    head = [*keys, "MB moved", *subjects, *shares]
    return f"{MEASURED.format(how=how, first=first)}\n\n{table(head, body)}"


def _floors(rows: list[Row]) -> str:
    subjects = list(dict.fromkeys(row.subject for row in rows))
    keys, lines = _lines(rows)
    body = []
    for facts, of_line in lines.items():
        floors = [f"{of_line[name].figures['floor_us']:.3g}" if name in of_line else "" for name in subjects]
        body.append([*facts, _bytes(next(iter(of_line.values()))), *floors])
    return f"{STATED}\n\n{table([*keys, 'MB moved', *subjects], body)}"


def _columns(note: str, columns: Sequence[tuple[str, str, str]]) -> Callable[[list[Row]], str]:
    """A table with a line a row and these columns, of which one that no row has is left out."""

    def of(rows: list[Row]) -> str:
        shown = [column for column in columns if any(column[1] in row.figures for row in rows)]
        head = ["preset", "code for", "pool", *(name for name, _, _ in shown)]
        body = [
            [
                *(row.preset, row.subject, str(row.case["pool_dtype"])),
                *(form.format(row.figures[key]) if key in row.figures else "" for _, key, form in shown),
            ]
            for row in rows
        ]
        return f"{note}\n\n{table(head, body)}"

    return of


UNMEASURED: tuple[tuple[str, str, Callable[[list[Row]], str]], ...] = (
    (row_files.STATED, "Floor times", _floors),
    (row_files.COMPILED, "Compiled code", _columns(COMPILED, COMPILED_COLUMNS)),
    (row_files.EMULATED, "Executed instructions", _columns(EMULATED, EMULATED_COLUMNS)),
)


def _lines(rows: list[Row]) -> tuple[list[str], dict[tuple[str, ...], dict[str, Row]]]:
    """The case's facts that vary, and the rows of each combination by subject (the last one wins)."""
    keys = [key for key in rows[0].case if len({row.case.get(key) for row in rows}) > 1]
    lines: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        lines.setdefault((row.preset, *(str(row.case.get(key, "")) for key in keys)), {})[row.subject] = row
    return ["preset", *keys], lines


def _shares(of_line: dict[str, Row], first: str) -> list[str]:
    figures = of_line[first].figures if first in of_line else {}
    names = ("copy_bandwidth_share", "same_copy_share", "stated_peak_share")
    shares = [f"{figures[name]:.0%}" if name in figures else "" for name in names]
    if not figures or BASELINE not in of_line:
        return [*shares, ""]
    return [*shares, f"{of_line[BASELINE].figures['p50_us'] / figures['p50_us']:.2f}"]


def _spread(row: Row) -> str:
    figures = row.figures
    return f"{figures['p50_us']:.1f} ({figures['p20_us']:.1f} to {figures['p80_us']:.1f})"


def _bytes(row: Row) -> str:
    return f"{row.figures['moved_bytes'] / 1e6:.3g}"


def _device_line(row: Row) -> str:
    if row.subject == EVENT_PAIR:
        return f"Two time stamps with nothing between them: {_spread(row)} us, contained in every time below."
    rate = f"{row.figures['bandwidth_gb_per_s']:.4g} GB/s"
    return f"A copy that moves {_bytes(row)} MB: {rate}, the measured copy bandwidth."
