"""What is added on each machine, and that nothing of the user's is replaced."""

from __future__ import annotations

import pytest

from sglang_dspark.launch.arguments import OPTIONS, Given
from sglang_dspark.launch.command import compose
from sglang_dspark.launch.machine import Machine
from sglang_dspark.launch.recommendations import Advice, Standing, ranks, recommend
from tests.unit.launch.machines import B200, CPU, H200, MI300X, MI355X, ONE_MI300X

MACHINES = {"mi300x": MI300X, "mi355x": MI355X, "h200": H200, "b200": B200, "cpu": CPU}


def added(machine: Machine, *arguments: str, **environment: str) -> dict[str, str]:
    advice = recommend(machine, Given(arguments), environment)
    return {item.name: str(item.value) for item in advice if item.standing is Standing.ADDED}


@pytest.mark.parametrize("machine", [MI300X, MI355X], ids=["gfx942", "gfx950"])
def test_instinct(machine: Machine) -> None:
    assert added(machine) == {
        "--speculative-algorithm": "dspark",
        "SGLANG_USE_AITER": "1",
        "--tp-size": "8",
        "--attention-backend": "triton",
        "--mem-fraction-static": "0.80",
        "--chunked-prefill-size": "8192",
        "--watchdog-timeout": "3600",
    }


def test_nvidia_is_left_to_sglang_but_for_the_ranks() -> None:
    assert added(H200) == {"--speculative-algorithm": "dspark", "--tp-size": "8"}
    assert added(B200)["--tp-size"] == "4"


def test_a_cpu_that_was_asked_for() -> None:
    rest = {"--speculative-algorithm": "dspark", "--max-total-tokens": "32768"}
    assert added(CPU, SGLANG_USE_CPU_ENGINE="1") == {**rest, "--device": "cpu"}
    assert added(CPU, "--device", "cpu") == {**rest, "SGLANG_USE_CPU_ENGINE": "1"}


def test_a_gpu_that_was_not_found_is_no_cpu() -> None:
    """428 billion parameters on a CPU, because a driver was missing, would be the quietest of failures."""
    assert added(CPU) == {"--speculative-algorithm": "dspark"}
    assert added(CPU, SGLANG_USE_CPU_ENGINE="true") == {"--speculative-algorithm": "dspark"}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_what_was_given_stands(machine: Machine) -> None:
    """Every option and variable at once; the command ends with the user's words and nothing behind them."""
    words = [word for option in OPTIONS for word in (option.name, "given")]
    environment = {"SGLANG_USE_AITER": "0", "SGLANG_USE_CPU_ENGINE": "1"}
    advice = recommend(machine, Given(words), environment)
    assert not [item for item in advice if item.standing is Standing.ADDED]
    command = compose(Given(words), advice, environment)
    assert list(command.arguments) == words and command.environment == environment


def test_a_choice_that_differs_is_told() -> None:
    (item,) = (item for item in recommend(MI300X, Given(["--tp", "4"]), {}) if item.name == "--tp-size")
    assert (item.value, item.standing) == ("4", Standing.GIVEN) and item.reason.startswith("recommended: 8; ")
    (item,) = (i for i in recommend(MI300X, Given([]), {"SGLANG_USE_AITER": "0"}) if i.is_variable)
    assert item.standing is Standing.GIVEN and "recommended: 1" in item.reason


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_every_line_has_a_reason(machine: Machine) -> None:
    for item in recommend(machine, Given([]), {"SGLANG_USE_CPU_ENGINE": "1"}):
        assert isinstance(item, Advice) and len(item.reason) > 10
        assert (item.value is None) == (item.standing is Standing.LEFT)


@pytest.mark.parametrize(
    ("devices", "refused", "expected"), [(8, (), 8), (7, (), 4), (1, (), 1), (16, (), 8), (8, (8,), 4), (0, (), 1)]
)
def test_ranks(devices: int, refused: tuple[int, ...], expected: int) -> None:
    assert ranks(devices, lambda count: count not in refused) == expected


def test_one_card_needs_no_ranks() -> None:
    assert "--tp-size" not in added(ONE_MI300X)
