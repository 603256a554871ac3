"""A toy target of twelve tokens, and what its draft learns from."""

import pytest
import torch

from sglang_dspark.demo import DemoSpec, build
from sglang_dspark.train.continuations import Recipe, cache_features, facts_of
from sglang_dspark.train.draft_config import DraftChoices, new_draft_config
from sglang_dspark.train.draft_training import DraftObjective, new_draft
from sglang_dspark.train.feature_cache import FeatureCache
from sglang_dspark.train.teachers import load_teacher

LAYERS = (0, 2)
RECIPE = Recipe(sequences=12, prompt_tokens=6, new_tokens=18, temperatures=(0.0, 1.0), batch=4, seed=3)
END = 2


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    # No first blocks that always win, so that transformers computes the same.
    return build(tmp_path_factory.mktemp("toy"), spec=DemoSpec.tiny(12, sparse_init_blocks=0))


@pytest.fixture(scope="session")
def teacher(pair):
    return load_teacher(pair.target)


@pytest.fixture(scope="session")
def stream():
    return torch.randint(0, 11, (200,), generator=torch.Generator().manual_seed(5), dtype=torch.int32)


@pytest.fixture(scope="session")
def facts(teacher, stream):
    return facts_of(teacher, stream, RECIPE, LAYERS)


@pytest.fixture(scope="session")
def features_folder(tmp_path_factory, teacher, stream):
    """Shared, so never damage it: copy it first."""
    folder = tmp_path_factory.mktemp("cache") / "features"
    cache_features(teacher, stream, RECIPE, LAYERS, folder, end_token=END)
    return folder


@pytest.fixture
def objective(teacher, features_folder):
    """A fresh draft with its optimizer."""
    return make_objective(teacher, features_folder)


def make_objective(teacher, features_folder, seed=1, batch=3, optimizer="adamw"):
    choices = DraftChoices(
        mask_token_id=11, target_layer_ids=LAYERS, layers=1, block_size=4, mlp_width=48, markov_rank=8, num_anchors=5
    )
    draft = new_draft(new_draft_config(teacher.config, choices), teacher, seed)
    return DraftObjective(draft, FeatureCache(features_folder), batch=batch, optimizer=optimizer)
