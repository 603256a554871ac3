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
        verified: entry k - 1 is the number of rounds in which the target looked at proposal k; gamma entries. Less than
            all rounds where the server schedules by confidence, or has stopped drafting for a request.
    """

    kept: tuple[int, ...]
    verified: tuple[int, ...]

    @classmethod
    def of_rounds(cls, kept: Iterable[int], gamma: int) -> Counts:
        """Count rounds given by how many proposals each kept, of gamma that were looked at.

        Raises:
            ValueError: a round kept less than nothing or more than gamma.
        """
        histogram = [0] * (gamma + 1)
        for number in kept:
            if not 0 <= number <= gamma:
                raise ValueError(f"asked for rounds that kept 0 to {gamma} proposals, found one that kept {number}")
            histogram[number] += 1
        return cls(tuple(histogram), (sum(histogram),) * gamma)

    @classmethod
    def of_histogram(cls, histogram: Sequence[int], gamma: int, caps: Sequence[int] = ()) -> Counts:
        """Counts from what SGLang's server says of a request.

        Args:
            histogram: its `spec_correct_drafts_histogram`, which ends with the largest number that occurred.
            gamma: proposals a round.
            caps: its `spec_cap_lens_histogram`: entry n is the number of rounds that verified n tokens, the anchor
                included; rounds without a cap are left out.

        Raises:
            ValueError: a round kept more than gamma.
        """
        if any(histogram[gamma + 1 :]):
            raise ValueError(
                f"asked for rounds that kept at most {gamma} proposals, found a histogram of {len(histogram)} entries: "
                f"{list(histogram)}"
            )
        rounds = sum(histogram)
        # A cap of n tokens leaves out the proposals from the n-th on.
        verified = [rounds - sum(caps[: position + 1]) for position in range(1, gamma + 1)]
        return cls(tuple([*histogram, *[0] * (gamma + 1)][: gamma + 1]), tuple(verified))

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
        return 1 + sum(self.verified) / self.rounds if self.rounds else None

    @property
    def trimmed(self) -> bool:
        """Whether rounds verified less than was proposed: what was left out counts as not kept."""
        return any(count < self.rounds for count in self.verified)

    def _at_least(self, kept: int) -> int:
        return sum(self.kept[kept:])


def _sum(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    size = max(len(left), len(right))
    pairs = zip([*left, *[0] * size][:size], [*right, *[0] * size][:size], strict=True)
    return tuple(a + b for a, b in pairs)
