"""Markdown of an evaluation, from its JSON alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def acceptance_markdown(table: Mapping[str, Any]) -> str:
    """The accepted lengths, and the acceptance and survival of each position."""
    return "\n".join(_acceptance_lines(table)) + "\n"


def _acceptance_lines(table: Mapping[str, Any]) -> Iterator[str]:
    sets, published, gamma = table["sets"], table["published"], table["proposals"]
    yield "# Accepted length by data set"
    yield ""
    yield from _circumstances(table)
    yield ""
    yield "The accepted length counts the tokens of a verify round, the target's own included, as SGLang's `accept len`"
    yield f"and the DSpark paper do: 1 is no gain, {gamma + 1} the most."
    yield ""
    shown = published is not None and any(one["published_accepted_length"] for one in sets)
    columns = ["data set", "prompts", "rounds", "tokens", "accepted length"]
    columns += ["verified a round"] if any(one["trimmed"] for one in sets) else []
    columns += ["published"] if shown else []
    yield from _header(columns)
    for one in sets:
        cells = [one["name"], one["prompts"], one["rounds"], one["new_tokens"], _bold(one["accepted_length"])]
        cells += [_number(one["verified_length"])] if "verified a round" in columns else []
        cells += [_number(one["published_accepted_length"])] if shown else []
        yield _row(cells)
    yield ""
    if shown:
        yield f"Published: {published['draft']} for {published['target']}, {published['proposals']} proposals a round; "
        yield f"{published['conditions']}. Source: {published['source']}."
        yield ""
    if any(one["trimmed"] for one in sets):
        yield "The server verified less than was proposed in some rounds (confidence scheduling). What it left out"
        yield "counts as not kept below: the positions show what was served, not what the draft could do."
        yield ""
    for key, title in (
        ("acceptance", "Acceptance by position, where every proposal before it was kept:"),
        ("survival", "Share of the rounds that kept at least so many proposals:"),
    ):
        yield title
        yield ""
        yield from _header(["data set", *map(str, range(1, gamma + 1))])
        yield from (_row([one["name"], *map(_number, one[key])]) for one in sets)
        yield ""


def calibration_markdown(table: Mapping[str, Any]) -> str:
    """The calibration errors by position, before the temperatures and with them."""
    return "\n".join(_calibration_lines(table)) + "\n"


def _calibration_lines(table: Mapping[str, Any]) -> Iterator[str]:
    positions = table["positions"]
    yield "# Calibration of the confidence head"
    yield ""
    yield from _circumstances(table)
    yield ""
    fitted, others = table["fitted_rounds"], table["held_out_rounds"]
    yield f"Temperatures fitted on {fitted} rounds; everything below is of {others} others."
    yield "Predicted and observed are survival: that a proposal is kept with all before it. ECE is over 15 bins; a head"
    yield "that always says the average has none, which does not bring down the Brier score, the mean squared error."
    yield ""
    scaled = "with temperatures"
    yield from _header(
        ["position", "temperature", "observed", "predicted", scaled, "ECE", scaled, "Brier", scaled, "AUC"]
    )
    for index, one in enumerate(positions, start=1):
        yield _row(
            [
                index,
                _number(one["temperature"]),
                *(_number(one[key], 3) for key in ("observed", "predicted_before", "predicted_after")),
                _percent(one["ece_before"]),
                _bold_text(_percent(one["ece_after"])),
                *(_number(one[key], 3) for key in ("brier_before", "brier_after")),
                _number(one["auc"], 3),
            ]
        )
    before, after = table["mean_ece_before"], table["mean_ece_after"]
    yield _row(["mean", "", "", "", "", _percent(before), _bold_text(_percent(after)), "", "", ""])


def _circumstances(table: Mapping[str, Any]) -> Iterator[str]:
    judge, run, settings = table["judge"], table["run"], table["settings"]
    paths = [judge.get(key) for key in ("model_path", "speculative_draft_model_path")]
    models = " with ".join(f"`{path}`" for path in paths if path)
    where = f"SGLang {judge['version']} at {judge['url']}" if judge["kind"] == "server" else judge["kind"]
    yield f"{models or 'A draft'}, {table['proposals']} proposals a round, judged by the {where}"
    if settings:
        asked = "chat prompts" if settings["chat"] else "raw prompts"
        yield f"at temperature {settings['temperature']:g}, {asked}, at most {settings['max_new_tokens']} new tokens."
    versions = ", ".join(f"{name} {run['versions'][name]}" for name in ("sglang-dspark", "torch", "python"))
    yield ""
    yield f"`{run['command']}`, {run['started'][:10]}, commit {run['commit'][:12]}, {versions}."


def _header(columns: Sequence[str]) -> Iterator[str]:
    yield _row(columns)
    yield "|---|" + "--:|" * (len(columns) - 1)


def _row(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _bold(value: float | None) -> str:
    return _bold_text(_number(value))


def _bold_text(text: str) -> str:
    return f"**{text}**"
