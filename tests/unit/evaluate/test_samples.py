"""Collected confidences are read as SGLang's server writes them, and refused where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sglang.srt.speculative.dspark_components.dspark_sts import StsDataRecorder

from sglang_dspark.evaluate.samples import Samples, SamplesError, read_shards


def samples(count: int, gamma: int = 3, seed: int = 0) -> Samples:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, gamma, generator=generator)
    return Samples(logits, torch.randint(0, gamma + 1, (count,), generator=generator))


def test_what_the_servers_recorder_writes(tmp_path: Path) -> None:
    """Twelve files of two steps each, in the order in which they were written: demo.10.pt follows demo.9.pt."""
    recorder = StsDataRecorder(path_stem=str(tmp_path / "demo"), gamma=3, flush_every=2)
    written = samples(48)
    for start in range(0, 48, 2):
        rows = slice(start, start + 2)
        recorder.record(confidence_raw=written.logits[rows], num_correct_drafts=written.kept[rows])
    found = read_shards(str(tmp_path / "demo.*.pt"))
    assert len(list(tmp_path.iterdir())) == 12
    assert torch.equal(found.logits, written.logits) and torch.equal(found.kept, written.kept)


def test_our_files_are_read_as_the_servers(tmp_path: Path) -> None:
    written = samples(5)
    written.save(tmp_path / "a.0.pt")
    found = read_shards(str(tmp_path / "a.*.pt"))
    assert torch.equal(found.logits, written.logits) and torch.equal(found.kept, written.kept)


def test_no_file(tmp_path: Path) -> None:
    """The likeliest cause: SGLang builds no confidence head in its static mode, and writes every 256 steps only."""
    with pytest.raises(SamplesError, match="(?s)no such file.*cap-accept.*256 verify steps"):
        read_shards(str(tmp_path / "a.*.pt"))


def test_two_block_sizes(tmp_path: Path) -> None:
    samples(2).save(tmp_path / "a.0.pt")
    samples(2, gamma=4).save(tmp_path / "a.1.pt")
    with pytest.raises(SamplesError, match=r"one block size, found \[3, 4\]"):
        read_shards(str(tmp_path / "a.*.pt"))


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("code from a file was run",))


def test_damaged_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text, a pickle that would run code, rows with a hole, nan: each named, and no code of a file is run."""
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    for content, message in (
        (None, "not a file of collected confidences"),
        (Evil(), "not a file of collected confidences"),
        ({"logits": torch.zeros(1, 3)}, "not a file of collected confidences"),
        ({"logits": torch.zeros(1, 3), "prefix_mask": mask.flip(1)}, "ones before zeros"),
        ({"logits": torch.zeros(2, 3), "prefix_mask": mask}, "one shape"),
        ({"logits": torch.full((1, 3), float("nan")), "prefix_mask": mask}, "nan or inf"),
    ):
        path = tmp_path / "a.0.pt"
        path.write_text("text") if content is None else torch.save(content, path)
        with pytest.raises(SamplesError, match=message) as error:
            read_shards(str(path))
        assert "a.0.pt" in str(error.value)
    assert "was run" not in capsys.readouterr().out
