"""What is asked: prompts from files of several shapes, or random ids, as SGLang's benchmark takes them."""

from __future__ import annotations

import json

import pytest

from sglang_dspark.bench.serving import workload


def test_every_known_shape_of_a_line(tmp_path):
    lines = [
        {"prompt": "one"},
        {"text": "two"},
        {"turns": ["three", "and more"]},
        {"conversations": [{"content": "four"}, {"content": "x"}]},
        {"conversations": [{"from": "human", "value": "five"}]},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    assert workload.read_prompts(path) == ["one", "two", "three", "four", "five"]


@pytest.mark.parametrize(
    "line", ["no json", '{"question": "x"}', '{"prompt": ""}', '{"prompt": 3}', '{"turns": []}', "[]"]
)
def test_another_line_is_refused_by_number(tmp_path, line):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"prompts.jsonl:2: expected .*\"prompt\""):
        workload.read_prompts(path)


def test_an_empty_file_is_refused(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n")
    with pytest.raises(ValueError, match="holds no prompts"):
        workload.read_prompts(path)


def test_prompts_become_a_custom_data_set(tmp_path):
    found = workload.from_prompts(["a", "b"], "mine", 7, tmp_path)
    written = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    # SGLang's benchmark drops conversations of fewer than two turns.
    assert [len(line["conversations"]) for line in written] == [2, 2]
    assert found.arguments[:2] == ("--dataset-name", "custom") and found.arguments[-1] == "7"
    assert found.available == 2 and found.case == {"data": "mine", "output_tokens": 7} and found.texts == ("a", "b")


def test_random_ids_have_one_length():
    found = workload.random_ids(128, 32, ["x"])
    arguments = dict(
        zip(found.arguments[:1] + found.arguments[3::2], found.arguments[1:2] + found.arguments[4::2], strict=True)
    )
    assert arguments["--dataset-name"] == "random-ids"
    assert arguments["--random-input-len"] == "128" and arguments["--random-output-len"] == "32"
    # The default range ratio draws lengths from 1 up.
    assert arguments["--random-range-ratio"] == "1.0"
    assert "--tokenize-prompt" in found.arguments and found.available is None
