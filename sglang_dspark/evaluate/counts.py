"""What verify rounds kept, counted: the one form in which acceptance is added up, compared and reported.

A round proposes gamma tokens; the target keeps the first k of them and adds one of its own. Everything that is
reported follows from how many rounds kept how many: the accepted length (the target's own token included, as SGLang's
"accept len" and the DSpark paper count), and by position both the survival (all up to here were kept) and the
acceptance (kept, where all before it were: the paper's position-wise conditional acceptance, section 4.3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    """Rounds by how many of their proposals were kept.

    Args:
        kept: entry k is the number of rounds that kept exactly k proposals; gamma + 1 entries.
        verified: entry v is the number of rounds in which v tokens were verified, the anchor included, where the server
            says so (confidence scheduling may verify less than was proposed); empty where every round verified all.
    """

    kept: tuple[int, ...]
    verified: tuple[int, ...] = ()

    @classmethod
    def of_rounds(cls, kept: Iterable[int], gamma: int) -> Counts:
        """Count rounds given by how many proposals each kept.

        Raises:
            ValueError: a round kept less than nothing or more than gamma.
        """
        histogram = [0] * (gamma + 1)
        for number in kept:
            if not 0 <= number <= gamma:
                raise ValueError(f"asked for rounds that kept 0 to {gamma} proposals, found one that kept {number}")
            histogram[number] += 1
        return cls(tuple(histogram))

    @classmethod
    def of_histogram(cls, histogram: Sequence[int], gamma: int, verified: Sequence[int] = ()) -> Counts:
        """Counts from a histogram that may end before gamma, as SGLang's `spec_correct_drafts_histogram` does.

        Raises:
            ValueError: it has entries past gamma.
        """
        if len(histogram) > gamma + 1 and any(histogram[gamma + 1 :]):
            raise ValueError(
                f"asked for rounds that kept at most {gamma} proposals, found a histogram of {len(histogram)} entries: "
                f"{list(histogram)}"
            )
        padded = [*histogram, *[0] * (gamma + 1)][: gamma + 1]
        return cls(tuple(padded), tuple(verified))

    def __add__(self, other: Counts) -> Counts:
        return Counts(_sum(self.kept, other.kept), _sum(self.verified, other.verified))

    @property
    def gamma(self) -> int:
        """Proposals a round."""
        return len(self.kept) - 1

    @property
    def rounds(self) -> int:
        """Verify rounds."""
        return sum(self.kept)

    @property
    def accepted_length(self) -> float | None:
        """Tokens a round yields, the target's own included; None without rounds."""
        return None if not self.rounds else 1 + sum(k * n for k, n in enumerate(self.kept)) / self.rounds

    @property
    def survival(self) -> list[float | None]:
        """The share of rounds that kept at least the first 1, 2, ... gamma proposals."""
        return [self._at_least(k) / self.rounds if self.rounds else None for k in range(1, self.gamma + 1)]

    @property
    def acceptance(self) -> list[float | None]:
        """How often proposal 1, 2, ... gamma was kept where all before it were; None where none got so far."""
        reached = [self._at_least(k) for k in range(self.gamma + 1)]
        return [after / before if before else None for before, after in zip(reached, reached[1:], strict=False)]

    @property
    def verified_length(self) -> float | None:
        """Tokens that a round verified, the anchor included; gamma + 1 where nothing was left out."""
        if not self.verified:
            return float(self.gamma + 1) if self.rounds else None
        return sum(v * n for v, n in enumerate(self.verified)) / sum(self.verified)

    @property
    def trimmed(self) -> bool:
        """Whether rounds verified less than was proposed: what was left out counts as not kept."""
        return any(self.verified[: self.gamma + 1])

    def _at_least(self, kept: int) -> int:
        return sum(self.kept[kept:])


def _sum(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    size = max(len(left), len(right))
    pairs = zip([*left, *[0] * size][:size], [*right, *[0] * size][:size], strict=True)
    return tuple(a + b for a, b in pairs)
