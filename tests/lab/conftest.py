"""The tree that the laboratory's tests share."""

import pytest

from offline_rlvr.lab import Tree


@pytest.fixture(scope="session")
def tree() -> Tree:
    return Tree()
