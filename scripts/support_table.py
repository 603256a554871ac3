"""Writes docs/support.md, and the README's table, from docs/support.toml, CI's required executors and measured rows.

    python scripts/support_table.py            # write both
    python scripts/support_table.py --check    # exit status 1 when one of them is not what would be written

A claim stands only while its tests exist and CI requires its executors; "measured" comes from rows alone.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tomllib

from sglang_dspark.bench import rows

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- support: scripts/support_table.py writes what follows -->", "<!-- support: end -->"
LEVELS = {
    "measured": "timed on that hardware",
    "emulated": "its exact numerics or code reproduced and checked on a CPU",
    "compiled": "built for that target, not run",
    "correctness": "right by its tests, no speed claimed",
    "untested": "written, nothing more",
}
_EXECUTOR = re.compile(r"\b(\w+/\w+/[\w-]+(?:/[\w-]+)*)")


class Unproved(ValueError):
    """A claim of docs/support.toml that nothing stands behind."""


@dataclass(frozen=True)
class Claim:
    """One row of the table."""

    name: str
    level: str
    claim: str
    tested: str
    arch: tuple[str, ...]
    ops: tuple[str, ...]
    executors: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def support(self) -> str:
        """The second column."""
        return f"{self.level}: {self.claim}" if self.claim else self.level


def read_claims(text: str) -> list[Claim]:
    """The rows of docs/support.toml.

    Raises:
        Unproved: an unknown key or level, or "measured" by hand.
    """
    claims = []
    for row in tomllib.loads(text)["row"]:
        values = {key: tuple(row.pop(key, ())) for key in ("arch", "ops", "executors", "tests")}
        claim = Claim(row.pop("name"), row.pop("level"), row.pop("claim", ""), row.pop("tested"), **values)
        if row:
            raise Unproved(f"{claim.name}: unknown keys {', '.join(row)}")
        if claim.level not in LEVELS or claim.level == "measured":
            raise Unproved(f"{claim.name}: asked for a level of {', '.join(LEVELS)}, measured excepted: {claim.level}")
        claims.append(claim)
    return claims


def required_executors(root: Path = ROOT) -> set[str]:
    """What CI fails without, op/backend/executor."""
    texts = [(root / name).read_text(encoding="utf-8") for name in (".ci/run", "Makefile")]
    return {
        name for text in texts for line in text.splitlines() if "EXECUTORS" in line for name in _EXECUTOR.findall(line)
    }


def prove(claims: Sequence[Claim], executors: set[str], root: Path = ROOT) -> None:
    """Raise Unproved for a claim whose test is gone, or whose executor CI does not require; all at once."""
    problems = []
    for claim in claims:
        problems += [f"{claim.name}: no such test: {test}" for test in claim.tests if not (root / test).is_file()]
        problems += [f"{claim.name}: CI does not require {name}" for name in claim.executors if name not in executors]
        if claim.level != "untested" and not (claim.tests or claim.executors):
            problems.append(f"{claim.name}: {claim.level}, and neither a test nor an executor")
    if problems:
        raise Unproved("\n".join(problems))


def with_results(claim: Claim, measured: Sequence[rows.Row]) -> Claim:
    """The claim, or "measured" in its place where rows say so."""
    found = [row for row in measured if _arch(row) in claim.arch and row.benchmark in claim.ops]
    if not found:
        return claim
    devices = sorted({row.run.device["name"] for row in found})
    told = f"{', '.join(sorted({row.benchmark for row in found}))} on {', '.join(devices)}"
    also = f"; {claim.support}" if claim.level != "untested" else ""
    where = "[benchmarks](benchmarks.md)"
    return Claim(claim.name, "measured", told + also, where, claim.arch, claim.ops, claim.executors, claim.tests)


def measured_rows(folder: Path) -> list[rows.Row]:
    """Rows that were timed on a GPU."""
    found = rows.read(sorted(folder.glob("*.jsonl")))
    return [row for row in found if row.measured and row.run.device.get("platform") in ("amd", "nvidia")]


def _arch(row: rows.Row) -> str:
    return row.run.device.get("arch", "").split(":")[0]


def table(claims: Sequence[Claim]) -> str:
    """The table both pages show."""
    meanings = " ".join(f"*{level}*: {meaning}." for level, meaning in LEVELS.items())
    lines = [meanings, "", "| | support | tested where |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {claim.name} | {claim.support} | {claim.tested} |" for claim in claims)])


def executor_table(executors: set[str]) -> str:
    """Which backend of which op CI runs by which executor."""
    columns = sorted({name.split("/", 2)[2] for name in executors})
    lines = [f"| op, backend | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for backend in sorted({"/".join(name.split("/")[:2]) for name in executors}):
        marks = ("yes" if f"{backend}/{column}" in executors else "" for column in columns)
        lines.append(f"| {backend.replace('/', ', ')} | {' | '.join(marks)} |")
    return "\n".join(lines)


def page(claims: Sequence[Claim], executors: set[str], measured: Sequence[rows.Row]) -> str:
    """docs/support.md."""
    devices = sorted({row.run.device["name"] for row in measured})
    results = (
        f"Rows are in from {', '.join(devices)}." if devices else "No rows are in yet: no GPU has run them so far."
    )
    proofs = [
        f"- {claim.name}: {', '.join(f'`{proof}`' for proof in (*claim.tests, *claim.executors))}"
        for claim in claims
        if claim.tests or claim.executors
    ]
    parts = [
        "# What has been shown where",
        "Written by `scripts/support_table.py` (`make docs` runs it) from `docs/support.toml`, the executors that CI "
        "requires, and the rows under `benchmarks/results`; do not edit. A claim whose test is gone, or whose executor "
        "CI no longer requires, stops it.",
        table(claims),
        "## Kernels in CI",
        "Each op's parity suite runs on these, and CI fails where one of them did not run, whatever the reason.",
        executor_table(executors),
        "## Timings",
        f"{results} [benchmarks.md](benchmarks.md) says how to send some.",
        "## What proves it",
        "\n".join(proofs),
    ]
    return "\n\n".join(parts) + "\n"


def readme(text: str, shown: str) -> str:
    """The README with its table replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise Unproved(f"README.md: asked for one {BEGIN!r} and one {END!r} around the table")
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{shown}\n\n{END}{rest.partition(END)[2]}"


def build(root: Path = ROOT) -> dict[Path, str]:
    """Every file and what it should hold.

    Raises:
        Unproved: a claim without proof.
    """
    claims, executors = (
        read_claims((root / "docs" / "support.toml").read_text(encoding="utf-8")),
        required_executors(root),
    )
    prove(claims, executors, root)
    measured = measured_rows(root / "benchmarks" / "results")
    claims = [with_results(claim, measured) for claim in claims]
    front = root / "README.md"
    shown = table(claims).replace("](benchmarks.md)", "](docs/benchmarks.md)")
    return {
        root / "docs" / "support.md": page(claims, executors, measured),
        front: readme(front.read_text(encoding="utf-8"), shown),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write, or check; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 when a file is not current")
    checking = parser.parse_args(arguments).check
    try:
        wanted = build()
    except (Unproved, rows.RowError) as error:
        print(f"support_table: {error}", file=sys.stderr)
        return 1
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if checking:
            print(f"{path.relative_to(ROOT)} is not current: run python scripts/support_table.py", file=sys.stderr)
        else:
            path.write_text(wanted[path], encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if checking and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
