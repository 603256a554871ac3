"""Asks a judge every prompt of every data set, and adds up what its rounds kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from sglang_dspark.evaluate.answer import Answer, Judge
from sglang_dspark.evaluate.counts import Counts
from sglang_dspark.evaluate.prompts import Prompt, PromptSet


@dataclass(frozen=True)
class SetResult:
    """One data set's prompts, counted together."""

    name: str
    file: str
    format: str
    prompts: int
    prompt_tokens: int
    new_tokens: int
    counts: Counts


class AskError(RuntimeError):
    """A prompt that the judge could not answer; the message names its file and line."""


def measure(
    judge: Judge, sets: Sequence[PromptSet], *, at_once: int = 1, progress: Callable[[str, int, int], None]
) -> list[SetResult]:
    """The results of all data sets, in order.

    Args:
        judge: who is asked.
        sets: what is asked.
        at_once: prompts under way at a time; a judge that is no server takes one.
        progress: called after each answer with the data set's name, the prompts answered, and their number.

    Raises:
        AskError: a prompt had no answer; what was still waiting is not asked any more.
    """
    return [_measure_set(judge, prompts, at_once, progress) for prompts in sets]


def _measure_set(
    judge: Judge, prompts: PromptSet, at_once: int, progress: Callable[[str, int, int], None]
) -> SetResult:
    answers: list[Answer] = []
    with ThreadPoolExecutor(at_once) as pool:
        waiting = [pool.submit(_ask, judge, prompt) for prompt in prompts.prompts]
        try:
            for done in as_completed(waiting):
                answers.append(done.result())
                progress(prompts.name, len(answers), len(waiting))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    counts = answers[0].counts
    for answer in answers[1:]:
        counts += answer.counts
    return SetResult(
        name=prompts.name,
        file=prompts.file,
        format=prompts.format,
        prompts=len(answers),
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        new_tokens=sum(answer.new_tokens for answer in answers),
        counts=counts,
    )


def _ask(judge: Judge, prompt: Prompt) -> Answer:
    try:
        return judge.ask(prompt.text)
    except (RuntimeError, ValueError) as error:
        raise AskError(f"the prompt of {prompt.source} had no answer: {error}") from error
