"""SGLang itself, and whether it would load this plugin: read from files and metadata, nothing is imported.

The rules of exclusion are those of SGLang 0.5.23, `load_plugins_by_group` and `_get_excluded_dists` in
`sglang.srt.plugins`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points

from sglang_dspark.doctor.findings import Case, Finding, ok, problem, warning
from sglang_dspark.serving import contract

PLUGINS, PLATFORMS = "sglang.srt.plugins", "sglang.srt.platforms"
OURS = "sglang_dspark.serving.plugin:register"


def check_sglang(case: Case) -> Iterator[Finding]:
    """The version, and every symbol the plugin relies on."""
    expected, found = contract.SGLANG_VERSION, contract.installed_version()
    remedy = f"install sglang=={expected}"
    moved = contract.mismatches(contract.HOST_SYMBOLS + (contract.CPU_SYMBOLS if case.cpu_engine else ()))
    if found == expected:
        yield ok("version", found)
    elif moved:
        yield problem("version", found, remedy, asked=expected)
    else:
        yield warning("version", f"{found}, which agrees in all that is relied on", remedy, asked=expected)
    for line in moved:
        yield problem("contract", line, f"{remedy}, or an sglang-dspark made for {found}: nothing is registered here")
    if not moved:
        yield ok("contract", "every symbol that the plugin relies on is as expected")


def check_entry_point(case: Case) -> Iterator[Finding]:
    """Whether SGLang finds the plugin, and no switch leaves it out."""
    return exclusions(case, list(entry_points(group=PLUGINS)), list(entry_points(group=PLATFORMS)))


def exclusions(case: Case, plugins: Iterable[EntryPoint], platforms: Iterable[EntryPoint]) -> Iterator[Finding]:
    """The same, for given entry points."""
    ours = [point for point in plugins if point.value == OURS]
    if not ours:
        remedy = "install sglang-dspark into the environment that SGLang runs in: pip install --no-deps ."
        yield problem("entry point", "none", remedy, asked=f"{OURS} in the group {PLUGINS}")
        return
    yield ok("entry point", f"{ours[0].name} = {OURS}")
    names = {name.strip() for name in case.environment.get("SGLANG_PLUGINS", "").split(",") if name.strip()}
    if names and ours[0].name not in names:
        remedy = f"add {ours[0].name} to it, or unset it"
        yield problem("SGLANG_PLUGINS", f"{','.join(sorted(names))}, so SGLang leaves this plugin out", remedy)
    elif names:
        yield ok("SGLANG_PLUGINS", f"{','.join(sorted(names))}, this plugin among them")
    if selected := case.environment.get("SGLANG_PLATFORM"):
        yield _platform_choice(selected, ours[0], list(platforms))


def _platform_choice(selected: str, ours: EntryPoint, platforms: list[EntryPoint]) -> Finding:
    if selected not in [point.name for point in platforms]:
        known = ", ".join(point.name for point in platforms) or "none"
        return problem("SGLANG_PLATFORM", f"{selected}, and the installed ones are: {known}", "unset it")
    excluded = {point.dist.name for point in platforms if point.dist and point.name != selected}
    if ours.dist and ours.dist.name in excluded:
        return problem("SGLANG_PLATFORM", f"{selected}, so SGLang leaves out {ours.dist.name}", "unset it")
    return ok("SGLANG_PLATFORM", f"{selected}, which does not leave this plugin out")
