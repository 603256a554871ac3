"""Features are stored as they were computed, and a damaged or foreign cache never trains a draft."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from sglang_dspark.train.feature_cache import CacheFacts, FeatureCache, FeatureCacheError, FeatureCacheWriter

FACTS = CacheFacts(target="abc", target_layer_ids=(0, 2), hidden_size=3, length=5, recipe="by hand")


def sequences(count, start=0):
    ramp = torch.arange(float(start), float(start + count * 5 * 6)).view(count, 5, 6)
    return {
        "tokens": ramp[..., 0].long(),
        "loss_mask": ramp[..., 0] % 2 == 0,
        "features": ramp / 8,
        "last_hidden": -ramp[..., :3],
    }


@pytest.fixture
def folder(tmp_path):
    with FeatureCacheWriter(tmp_path / "cache", FACTS) as writer:
        writer.append(**sequences(2))
        writer.append(**sequences(1, start=32))
    return tmp_path / "cache"


def test_sequences_come_back_in_any_order(folder):
    cache = FeatureCache(folder)
    assert cache.sequences == 3 and cache.facts == FACTS
    batch, first, third = cache.read(torch.tensor([2, 0])), sequences(2), sequences(1, start=32)
    assert torch.equal(batch.tokens, torch.stack([third["tokens"][0], first["tokens"][0]]))
    assert torch.equal(batch.loss_mask[1], first["loss_mask"][0].float())
    assert torch.equal(batch.features[0], third["features"][0].bfloat16().float())
    assert torch.equal(batch.last_hidden[1], first["last_hidden"][0].bfloat16().float())


@pytest.mark.parametrize("name", ["tokens", "loss_mask", "features", "last_hidden"])
@pytest.mark.parametrize("damage", ["cut short", "changed", "gone"])
def test_a_damaged_file_is_named(folder, name, damage):
    path = folder / name
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "cut short":
        path.write_bytes(content[:-1])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(FeatureCacheError, match=rf"delete it and make it again:\n  - {name}:"):
        FeatureCache(folder)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"format": 0}'])
def test_no_manifest_no_cache(folder, content):
    (folder / "manifest.json").unlink()
    if content is not None:
        (folder / "manifest.json").write_text(content)
    with pytest.raises(FeatureCacheError, match="asked for a feature cache"):
        FeatureCache(folder)


def test_a_manifest_that_counts_wrongly_is_refused(folder):
    """Mapping more than the file holds would read whatever lies behind it."""
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"sequences": 4}))
    with pytest.raises(FeatureCacheError, match="tokens: asked for 80 bytes, found 60"):
        FeatureCache(folder)


def test_an_interrupted_writer_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), FeatureCacheWriter(tmp_path / "cache", FACTS) as writer:
        writer.append(**sequences(2))
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_misshapen_tensor_is_refused(tmp_path):
    rows = sequences(2)
    rows["features"] = rows["features"][..., :5]
    with (
        pytest.raises(FeatureCacheError, match="features: asked for 30 elements a sequence"),
        FeatureCacheWriter(tmp_path / "cache", FACTS) as writer,
    ):
        writer.append(**rows)


def test_nothing_is_overwritten(folder):
    with pytest.raises(FeatureCacheError, match="remove it first"):
        FeatureCacheWriter(folder, FACTS)


@pytest.mark.parametrize(
    "change", [{"target": "xyz"}, {"target_layer_ids": (0, 1)}, {"length": 6}, {"recipe": "otherwise"}]
)
def test_a_cache_made_for_something_else_is_refused(folder, change):
    cache = FeatureCache(folder)
    cache.require(FACTS)
    with pytest.raises(FeatureCacheError, match=f"{next(iter(change))}: asked for"):
        cache.require(replace(FACTS, **change))


def test_two_caches_have_two_identities(folder, tmp_path):
    other = tmp_path / "other"
    with FeatureCacheWriter(other, FACTS) as writer:
        writer.append(**sequences(3, start=1))
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert FeatureCache(folder).identity == FeatureCache(copy).identity != FeatureCache(other).identity
