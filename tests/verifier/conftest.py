"""One running verifier for the tests that only ask it questions."""

import pytest

from offline_rlvr.verifier import load


@pytest.fixture(scope="package")
def verifier():
    with load("math_verify", workers=2, timeout_s=2, memory_gib=0.75) as running:
        yield running
