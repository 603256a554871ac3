"""What a DSPARK server of MiniMax-M3 wants on a machine, each with its reason; what the user gave always stands.

Sources, read and not tried on a device by this project: SGLang 0.5.23's own resolution for MiniMax-M3
(`sglang.srt.arg_groups.model_overrides.minimax_m3`), its DSPARK handling (`arg_groups.speculative_hook`), its draft
backends (`arg_groups.choices`), and the MiniMax-M3 page of its cookbook, which serves without a draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from sglang_dspark.launch import arguments as options
from sglang_dspark.launch.arguments import Given, Option
from sglang_dspark.launch.machine import Machine

CPU_ENGINE = "SGLANG_USE_CPU_ENGINE"
# SGLang's cookbook serves MiniMax-M3 on up to eight devices of one host.
_MOST_RANKS = 8


class Standing(Enum):
    """Whose word counts for an option."""

    ADDED = "added"
    LEFT = "left to SGLang"
    GIVEN = "yours"


@dataclass(frozen=True)
class Advice:
    """One option or environment variable: whose word counts, the value (none where SGLang chooses), and why."""

    name: str
    value: str | None
    reason: str
    standing: Standing

    @property
    def is_variable(self) -> bool:
        """Whether it is an environment variable."""
        return not self.name.startswith("-")

    @property
    def written(self) -> str:
        """Name and value as they are typed."""
        if self.value is None:
            return self.name
        return f"{self.name}{'=' if self.is_variable else ' '}{self.value}"


@dataclass(frozen=True)
class _Wish:
    """A recommendation before anybody looked at what was given; without a value it is left to SGLang."""

    name: Option | str
    value: str | None
    reason: str


def recommend(
    machine: Machine,
    given: Given,
    environment: Mapping[str, str],
    fits: Callable[[int], bool] = lambda ranks: True,
) -> list[Advice]:
    """Every recommendation for a machine.

    Args:
        machine: where the server runs.
        given: the user's own arguments.
        environment: the server's variables; one that is set counts as given.
        fits: whether the draft can be split over so many ranks.
    """
    wishes = [_Wish(options.ALGORITHM, "dspark", "this plugin works behind SGLang's algorithm of that name")]
    if machine.platform.name != "cpu":
        wishes += {"amd": _amd, "nvidia": _nvidia}[machine.platform.name](machine, fits)
    elif cpu_asked_for(given, environment):
        # A CPU that nobody asked for is a GPU that was not found: nothing is added to go on with it.
        wishes += _cpu()
    return list(_settle(wishes, given, environment))


def cpu_asked_for(given: Given, environment: Mapping[str, str]) -> bool:
    """Whether the server is meant to run on the CPU; "1" and nothing else, as SGLang reads the variable."""
    return given.value(options.DEVICE) == "cpu" or environment.get(CPU_ENGINE) == "1"


def ranks(devices: int, fits: Callable[[int], bool]) -> int:
    """The most ranks, a power of two, that the devices and the draft allow."""
    allowed = [count for count in (1, 2, 4, _MOST_RANKS) if count <= devices and fits(count)]
    return max(allowed, default=1)


def _tensor_parallel(machine: Machine, fits: Callable[[int], bool]) -> Iterator[_Wish]:
    count = ranks(machine.devices, fits)
    if count > 1:
        told = f"{machine.devices} devices here; the most ranks, a power of two, over which the draft divides"
        yield _Wish(options.TENSOR_PARALLEL, str(count), told)


def _on_gpus() -> Iterator[_Wish]:
    yield _Wish(options.RUNNING_REQUESTS, None, "48 with speculation; raise it where more requests run at once")
    yield _Wish(
        options.KV_DTYPE,
        None,
        "the checkpoint's: nobody has measured what an fp8 KV cache costs in acceptance. fp8_e4m3 halves both pools",
    )


def _amd(machine: Machine, fits: Callable[[int], bool]) -> Iterator[_Wish]:
    yield _Wish(
        "SGLANG_USE_AITER", "1", "SGLang's kernels of AMD's library; its cookbook sets it on every Instinct card"
    )
    yield from _tensor_parallel(machine, fits)
    yield _Wish(
        options.ATTENTION_BACKEND,
        "triton",
        "what SGLang takes for MiniMax-M3 on ROCm, and the only backend that a DSPARK draft has there",
    )
    memory = "the cookbook's for MiniMax-M3 on Instinct, without a draft; lower it if memory runs out"
    yield _Wish(options.STATIC_MEMORY, "0.80", memory)
    yield _Wish(options.PREFILL_CHUNK, "8192", "the cookbook's for MiniMax-M3 on Instinct")
    yield _Wish(
        options.WATCHDOG, "3600", "AITER compiles kernels at first use, for longer than SGLang's 300 s at times"
    )
    yield _Wish(options.PAGE_SIZE, None, "1 on ROCm; our writers cover every size")
    yield from _on_gpus()


def _nvidia(machine: Machine, fits: Callable[[int], bool]) -> Iterator[_Wish]:
    yield from _tensor_parallel(machine, fits)
    own = "SGLang resolves it for MiniMax-M3 by card and checkpoint"
    yield _Wish(options.ATTENTION_BACKEND, None, f"{own} (fa3 on Hopper, trtllm_mha with NVFP4 on Blackwell)")
    yield _Wish(options.PAGE_SIZE, None, f"{own}, 128 on both: one page is one block of its sparse attention")
    yield _Wish(
        options.STATIC_MEMORY, None, "SGLang sizes it from the card; 0.75 in its cookbook for MiniMax-M3 on H200"
    )
    yield from _on_gpus()


def _cpu() -> Iterator[_Wish]:
    yield _Wish(CPU_ENGINE, "1", "SGLang's switch for a CPU; it also brings what only a GPU has otherwise")
    yield _Wish(options.DEVICE, "cpu", "the device to go with it")
    pool = "SGLang would size the KV pools by the whole machine's memory; raise it for long contexts"
    yield _Wish(options.POOL_TOKENS, "32768", pool)


def _settle(wishes: list[_Wish], given: Given, environment: Mapping[str, str]) -> Iterator[Advice]:
    for wish in wishes:
        is_option = isinstance(wish.name, Option)
        name = wish.name.name if isinstance(wish.name, Option) else wish.name
        own = given.value(wish.name) if isinstance(wish.name, Option) else environment.get(name)
        if own is None:
            yield Advice(name, wish.value, wish.reason, Standing.LEFT if wish.value is None else Standing.ADDED)
        elif is_option or own != wish.value:
            recommended = f"recommended: {wish.value}; " if wish.value not in (None, own) else ""
            yield Advice(name, own, f"{recommended}{wish.reason}", Standing.GIVEN)
