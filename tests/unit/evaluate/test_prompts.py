"""Every published form of the nine data sets is read; a line that cannot be is named by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_dspark.evaluate.prompts import FORMATS, PromptError, read_set

# One line of each edition, its fields as published and its content made up here; the format, and what must be asked.
LINES: dict[str, tuple[dict[str, Any], str, str]] = {
    "gsm8k": ({"question": "How many eggs?", "answer": "3 #### 3"}, "question", "How many eggs?"),
    "math500": (
        {"problem": "Find x.", "solution": "x", "answer": "1", "subject": "Algebra", "level": 1, "unique_id": "a"},
        "problem",
        "Find x.",
    ),
    "aime25": ({"problem_idx": 1, "problem": "Find y.", "answer": 7}, "problem", "Find y."),
    "mbpp sanitized": (
        {"source_file": "a", "task_id": 2, "prompt": "Sort a list.", "code": "c", "test_imports": [], "test_list": []},
        "prompt",
        "Sort a list.",
    ),
    "mbpp full": ({"task_id": 2, "text": "Sort a list.", "code": "c", "test_list": []}, "text", "Sort a list."),
    "humaneval": (
        {"task_id": "H/0", "prompt": "def f(x):\n", "entry_point": "f", "canonical_solution": "", "test": ""},
        "function",
        "def f(x):",
    ),
    "livecodebench": (
        {"question_title": "T", "question_content": "Count cards.", "platform": "p", "starter_code": "class S:"},
        "contest",
        "Count cards.",
    ),
    "livecodebench chat": (
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "Count."}]},
        "messages",
        "Count.",
    ),
    "mt-bench": ({"question_id": 81, "category": "w", "turns": ["Write.", "Again."]}, "turns", "Write."),
    "mt-bench on Hugging Face": ({"prompt_id": 1, "prompt": ["Write.", "Again."]}, "prompt", "Write."),
    "alpaca": ({"instruction": "Add.", "input": "1 2", "output": "3", "text": "..."}, "instruction", "1 2"),
    "alpaca without input": ({"instruction": "Sing.", "input": "", "output": "la"}, "instruction", "Sing."),
    "arena-hard v2": ({"uid": "u", "category": "hard", "prompt": "Explain."}, "prompt", "Explain."),
    "arena-hard 0.1": ({"question_id": "q", "turns": [{"content": "Explain."}]}, "turns", "Explain."),
    "DeepSpec": ({"turns": ["Any of the nine."]}, "turns", "Any of the nine."),
}


def write(path: Path, *lines: Any) -> str:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return f"set={path}"


@pytest.mark.parametrize("edition", LINES)
def test_editions(edition: str, tmp_path: Path) -> None:
    """Alpaca's lines also have a text and HumanEval's a prompt: the order of recognition decides."""
    line, name, asked = LINES[edition]
    found = read_set(write(tmp_path / "file.jsonl", line))
    assert found.format == name
    (prompt,) = found.prompts
    assert asked in prompt.text
    assert prompt.source == f"{tmp_path / 'file.jsonl'}:1"


def test_every_format_is_exercised() -> None:
    assert {name for _, name, _ in LINES.values()} == set(FORMATS)


def test_given_code_is_shown(tmp_path: Path) -> None:
    """A task with starter code is another task without it."""
    (prompt,) = read_set(write(tmp_path / "file.jsonl", LINES["livecodebench"][0])).prompts
    assert "class S:" in prompt.text


def test_a_named_format(tmp_path: Path) -> None:
    """A line that fits several."""
    path = tmp_path / "file.jsonl"
    write(path, LINES["alpaca"][0])
    assert read_set(f"alpaca:text={path}").prompts[0].text == "..."


def test_blank_lines_and_line_numbers(tmp_path: Path) -> None:
    argument = write(tmp_path / "file.jsonl", {"prompt": "one"}, "\n", {"prompt": "two"})
    assert [prompt.source.rsplit(":", 1)[1] for prompt in read_set(argument).prompts] == ["1", "3"]


def test_a_limit_draws_the_same_prompts_again(tmp_path: Path) -> None:
    argument = write(tmp_path / "file.jsonl", *({"prompt": f"p{n}"} for n in range(50)))
    first, again, other = (read_set(argument, 10, seed).prompts for seed in (0, 0, 1))
    assert first == again != other
    assert len(first) == 10 and [int(p.text[1:]) for p in first] == sorted(int(p.text[1:]) for p in first)
    assert len(read_set(argument, 100).prompts) == 50


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "found no line"),
        (("\n \n",), "found no line"),
        (({"prompt": "a"}, "{'prompt': 1}\n"), r"file\.jsonl:2: asked for one JSON object a line"),
        (("[1, 2]\n",), r"file\.jsonl:1: asked for one JSON object a line"),
        (({"id": 1, "answer": "x"},), r"file\.jsonl:1: found the fields id, answer, of no known format"),
        (({"prompt": "a"}, {"question": "b"}), r"file\.jsonl:2: asked for the field prompt of format prompt"),
        (({"prompt": "a"}, {"prompt": "  "}), r"file\.jsonl:2: asked for a prompt"),
        (({"prompt": 7},), r"file\.jsonl:1: asked for a prompt of format prompt, found 7"),
        (({"turns": []},), r"file\.jsonl:1: asked for a prompt"),
        (({"turns": [{"text": "a"}]},), r"file\.jsonl:1: not a line of format turns"),
        (({"messages": [{"role": "system", "content": "a"}]},), r"file\.jsonl:1: not a line of format messages"),
    ],
)
def test_what_cannot_be_asked(lines: tuple[Any, ...], message: str, tmp_path: Path) -> None:
    """The one bad line of a thousand is named, and nothing is left out silently."""
    with pytest.raises(PromptError, match=message):
        read_set(write(tmp_path / "file.jsonl", *lines))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("gsm8k.jsonl", "NAME=FILE"),
        ("=gsm8k.jsonl", "NAME=FILE"),
        ("gsm8k=", "NAME=FILE"),
        ("gsm8k:nonsense=gsm8k.jsonl", "formats are turns, "),
        ("gsm8k=/nowhere/gsm8k.jsonl", "/nowhere/gsm8k.jsonl, which cannot be read"),
    ],
)
def test_arguments_that_name_no_prompts(argument: str, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        read_set(argument)


def test_a_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PromptError, match="cannot be read as text"):
        read_set(f"set={path}")
