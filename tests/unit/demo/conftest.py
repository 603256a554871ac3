import pytest

from sglang_dspark.demo import build


@pytest.fixture(scope="session")
def automodel(tmp_path_factory):
    return build(tmp_path_factory.mktemp("automodel"), layout="automodel")


@pytest.fixture(scope="session")
def released(tmp_path_factory):
    return build(tmp_path_factory.mktemp("released"), layout="released")
