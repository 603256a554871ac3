"""The step-cost table for `--speculative-dspark-sps-table-path`, by SGLang's own profiler against a running server.

`python -m sglang.benchmark.dspark_sps_profiler` (SGLang 0.5.23) loads the server with batches of growing size and
reads the time of each verify step from the server's own records. The server must be started for it, with every
proposal refused so that a step's cost does not depend on luck; this module checks that first, since the profiler's
checks end in tracebacks. It runs against any device, a CPU too, where the figures are no guide to anything but that
the path works.

The profiler draws its prompts' tokens from 1000 to 1000 short of the tokenizer's size. For a vocabulary too small for
that, the demo's say, it is handed a tokenizer of 1000 tokens more, which makes it draw from 1000 to the vocabulary's
end.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sglang_dspark.evaluate.fitting import run_sglang
from sglang_dspark.evaluate.server import read_info
from sglang_dspark.server_http import ServerError

PROFILER = "sglang.benchmark.dspark_sps_profiler"
RECORD = "dspark_info_record"
VARIABLES = "SGLANG_DSPARK_ENABLE_SPS_RECORD=1 SGLANG_SIMULATE_ACC_LEN=1.0 SGLANG_RAGGED_VERIFY_MODE="
# The profiler's own: tokens below are taken for special ones, and as many at the end.
LOWEST_TOKEN = MARGIN = 1000


@dataclass(frozen=True)
class StepRun:
    """What to profile.

    Args:
        batch_sizes: requests at a time; the profiler's own growing series up to the server's limit where empty.
        fractions: shares of the proposals to verify, for a table over requests and tokens; the server must then run
            with SGLANG_RAGGED_VERIFY_MODE=compact. Empty for the plain table over tokens, with static.
        steady_steps: steps to time at each size, at the least.
        steady_seconds: time to spend at each size, at the least.
        repeats: of the whole series; the median counts.
    """

    batch_sizes: Sequence[int] = ()
    fractions: Sequence[float] = ()
    steady_steps: int = 32
    steady_seconds: float = 10.0
    repeats: int = 1


# Seconds instead of minutes: whether the path works, not what a step costs.
QUICK = StepRun(batch_sizes=(1, 4), steady_steps=8, steady_seconds=0.0)


def profile(url: str, out: Path, run: StepRun, progress: Callable[[int, float], None]) -> dict[str, Any]:
    """Write the table to `out`, the profiler's raw records beside it, and return the table.

    Args:
        url: of the server.
        out: file of the table.
        run: what to profile.
        progress: called about once a second with the rounds of load that are done, and the seconds so far.

    Raises:
        ServerError: the server is not there, or was not started for this.
        FitError: the profiler failed.
    """
    info = read_info(url)
    check_recording(url, info, offdiagonal=bool(run.fractions))
    out.parent.mkdir(parents=True, exist_ok=True)
    arguments = ["all", "--base-url", url, "--out", str(out)]
    arguments += ["--min-steady-steps", str(run.steady_steps), "--min-steady-seconds", str(run.steady_seconds)]
    arguments += ["--repeats", str(run.repeats)]
    if run.batch_sizes:
        arguments += ["--batch-size", *map(str, run.batch_sizes)]
    if run.fractions:
        arguments += ["--fracs", *map(str, run.fractions)]
    if not all(find_spec(name) for name in ("plotly", "kaleido")):
        arguments.append("--no-plot")
    with _suiting_tokenizer(str(info.get("tokenizer_path") or "")) as tokenizer:
        rounds = out.with_name(f"{out.stem}.rounds.jsonl")
        rounds.unlink(missing_ok=True)
        run_sglang(PROFILER, [*arguments, *tokenizer], poll=lambda seconds: progress(_lines(rounds), seconds))
    table: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return table


def check_recording(url: str, info: Mapping[str, Any], *, offdiagonal: bool) -> None:
    """Whether the server records its steps, refuses every proposal, and verifies as this table needs it.

    Raises:
        ServerError: it does not; with the variables to start it with.
    """
    modes = ("compact", "cap-accept") if offdiagonal else ("static",)
    states = info.get("internal_states") or [{}]
    problems = []
    for record in (state.get(RECORD) for state in states):
        if record is None:
            problems.append("it records no steps")
            continue
        if record.get("simulate_acc_len") != 1.0:
            problems.append(f"it simulates an accepted length of {record.get('simulate_acc_len')}, not 1.0")
        if record.get("mode") not in modes:
            problems.append(f"it verifies in mode {record.get('mode')}, not {' or '.join(modes)}")
    if info.get("disable_cuda_graph"):
        problems.append("it runs without graphs (--disable-cuda-graph), which real serving does not")
    if problems:
        raise ServerError(
            f"asked {url} for the cost of its steps, found that {'; '.join(dict.fromkeys(problems))}. Start the server "
            f"with {VARIABLES}{modes[0]} in its environment, profile, and start it anew without them"
        )


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@contextmanager
def _suiting_tokenizer(path: str) -> Iterator[list[str]]:
    """The profiler's option for another tokenizer, where the server's vocabulary is too small for it."""
    size = _vocabulary(Path(path)) if path and Path(path).is_dir() else None
    if size is None or size > LOWEST_TOKEN + MARGIN:
        yield []
        return
    if size <= LOWEST_TOKEN + 1:
        raise ServerError(
            f"asked SGLang's profiler to load a server whose vocabulary has {size} tokens; it takes prompts from token "
            f"{LOWEST_TOKEN} on, so it needs a model with more than {LOWEST_TOKEN + 1}"
        )
    from tokenizers import Tokenizer, models

    with tempfile.TemporaryDirectory() as folder:
        words = {f"t{index}": index for index in range(size + MARGIN)}
        Tokenizer(models.WordLevel(words, unk_token="t0")).save(str(Path(folder) / "tokenizer.json"))
        (Path(folder) / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        yield ["--local-tokenizer-path", folder]


def _vocabulary(folder: Path) -> int | None:
    """How many tokens the tokenizer of a folder has; None where only the profiler's own loader can tell."""
    if not (folder / "tokenizer.json").exists():
        return None
    from tokenizers import Tokenizer

    return int(Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size(with_added_tokens=True))
