"""The pages: their tables are current, every fault has its section, and `make docs` covers every page.

That every link leads to a page or heading that exists is the strict build's to say (`make docs`, which CI runs).
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from sglang_dspark.bench import rows

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def support() -> ModuleType:
    """scripts/support_table.py, which is no package."""
    spec = importlib.util.spec_from_file_location("support_table", ROOT / "scripts" / "support_table.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def claim(support: ModuleType, **changes):
    plain = support.Claim("a", "untested", "", "nowhere yet", ("gfx942",), ("context_kv",), (), ())
    return replace(plain, **changes)


def row(**device: str) -> rows.Row:
    run = rows.Run("2026-11-30T00:00:00Z", "x", "y", {"name": "AMD Instinct MI300X", "driver": "z", **device}, {})
    return rows.Row("context_kv", "hip", "p", {"T": 1}, {"mode": "graph"}, {"p50_us": 1.0}, True, run)


def test_the_tables_are_what_the_sources_say(support: ModuleType, capsys) -> None:
    """Otherwise: python scripts/support_table.py"""
    assert support.main(["--check"]) == 0, capsys.readouterr().err


def test_a_claim_needs_its_proof(support: ModuleType) -> None:
    """A claim that outlives its test is how a support table begins to lie."""
    executors = {"context_kv/torch/cpu"}
    good = claim(support, level="correctness", executors=("context_kv/torch/cpu",))
    support.prove([good], executors)
    for wrong, message in (
        (claim(support, tests=("tests/no_such.py",)), "no such test"),
        (claim(support, level="emulated", executors=("context_kv/hip/gfx942-emulated",)), "CI does not require"),
        (claim(support, level="compiled"), "neither a test nor an executor"),
    ):
        with pytest.raises(support.Unproved, match=message):
            support.prove([good, wrong], executors)


@pytest.mark.parametrize("line", ['level = "measured"', 'level = "fast"', 'level = "untested"\nsince = 1'])
def test_nobody_writes_measured_by_hand(support: ModuleType, line: str) -> None:
    with pytest.raises(support.Unproved):
        support.read_claims(f'[[row]]\nname = "a"\ntested = "b"\n{line}\n')


def test_rows_make_a_claim_measured(support: ModuleType, tmp_path: Path) -> None:
    timed = row(arch="gfx942:sramecc+", platform="amd")
    found = support.with_results(claim(support, level="emulated", claim="bytes"), [timed])
    assert found.level == "measured" and found.claim == "context_kv on AMD Instinct MI300X; emulated: bytes"
    for other in (claim(support, arch=("gfx950",)), claim(support, ops=("serving",))):
        assert support.with_results(other, [timed]) == other
    (tmp_path / "x.jsonl").write_text(
        "".join(rows.to_json(r) + "\n" for r in (timed, row(arch="cpu", platform="cpu"), replace(
            timed, measured=False, how={"basis": "stated"})))
    )  # fmt: skip
    assert [json.loads(rows.to_json(r)) for r in support.measured_rows(tmp_path)] == [json.loads(rows.to_json(timed))]


def test_executors_are_read_from_what_ci_runs(support: ModuleType) -> None:
    found = support.required_executors()
    assert {"context_kv/hip/gfx942-emulated", "qk_norm_rope/triton/interpreter", "context_kv/host/cpu"} <= found
    assert "context_kv/host/cpu/generated" in found


def test_a_readme_without_its_marks(support: ModuleType) -> None:
    with pytest.raises(support.Unproved, match="asked for one"):
        support.readme("nothing", "table")
    marked = f"a\n{support.BEGIN}\nold\n{support.END}\nb"
    assert support.readme(marked, "new") == f"a\n{support.BEGIN}\n\nnew\n\n{support.END}\nb"


@pytest.mark.parametrize("number", range(1, 24))
def test_every_fault_has_a_section(number: int) -> None:
    """With what one sees, why, how to confirm it, what to do, and why it does not happen here."""
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^### Fault {number}\n(.*?)(?=^##|\Z)", text, flags=re.M | re.S)
    assert re.match(r"\n\*\*[A-Z`].+\.\*\*\n", section)
    assert re.findall(r"^- \*([\w ]+)\*:", section, flags=re.M) == ["You see", "Why", "Confirm", "Do", "Here"]
    assert f"(#fault-{number})" in text.split("# The twenty-three faults")[0], "no symptom leads to it"


def test_every_page_is_in_the_index() -> None:
    """The site's contents are the index's lists; a page in none of them stops the build."""
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"^- \[.+?\]\((.+?\.md)\): \S", index, flags=re.M))
    missing = {path.name for path in DOCS.glob("*.md")} - {"README.md"} - linked
    assert not missing, f"give {', '.join(sorted(missing))} a line in docs/README.md"
    assert all((DOCS / name).is_file() for name in linked)


def test_commands_that_pages_name_exist(capsys) -> None:
    """`sglang-dspark something` in a page is a command, and so is every one that the README leaves out."""
    from sglang_dspark import cli

    with pytest.raises(SystemExit):
        cli.main(["--help"])
    commands = set(re.findall(r"^    (\w+) ", capsys.readouterr().out, flags=re.M))
    front, pages = ROOT / "README.md", sorted(DOCS.glob("*.md"))
    named = {page: set(re.findall(r"`sglang-dspark ([a-z]+)\b", page.read_text(encoding="utf-8"))) for page in pages}
    assert {page.name: words - commands for page, words in named.items() if words - commands} == {}
    assert set(re.findall(r"^\| `sglang-dspark ([a-z]+)`", front.read_text(encoding="utf-8"), flags=re.M)) == commands


def test_pages_that_messages_name_exist() -> None:
    """A log line that sends its reader to a heading that was renamed is a dead end."""
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "sglang_dspark").rglob("*.py"))
    named = set(re.findall(r"docs/([\w-]+\.md)(?:#([\w-]+))?", sources))
    assert ("troubleshooting.md", "the-accepted-length-stays-near-1") in named
    for page, anchor in named:
        headings = re.findall(r"^#+ (.+)$", (DOCS / page).read_text(encoding="utf-8"), flags=re.M)
        slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, f"docs/{page}#{anchor}"
