from __future__ import annotations

import pytest
import torch

from sglang_dspark.demo import DemoSpec, build
from tests.oracle.target import Target
from tests.unit.reference.pairs import encoded_prompts


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def automodel(tmp_path_factory):
    return build(tmp_path_factory.mktemp("automodel"), layout="automodel")


@pytest.fixture(scope="session")
def released(tmp_path_factory):
    return build(tmp_path_factory.mktemp("released"), layout="released")


@pytest.fixture(scope="session")
def without_initial_blocks(tmp_path_factory):
    """A target that transformers can be; block-sparse attention selects from about the 65th token on."""
    return build(tmp_path_factory.mktemp("transformers"), spec=DemoSpec.text(sparse_init_blocks=0))


@pytest.fixture(scope="session")
def oracle_target(automodel):
    return Target(automodel.target)


@pytest.fixture(scope="session")
def prompt_ids(automodel):
    """The third is longer than 300 tokens, the fourth and fifth longer than 200."""
    return encoded_prompts(automodel, 8)
