"""Amounts as a person reads them."""

import pytest

from offline_rlvr.amounts import duration, size


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (1536, "1.5 KiB"),
        (27.13 * 2**20, "27.1 MiB"),
        (999.6 * 2**20, "0.976 GiB"),
        (12.5 * 2**40, "12.50 TiB"),
        (12_500 * 2**40, "12,500.00 TiB"),
    ],
)
def test_sizes(count, words):
    assert size(count) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.043, "0.043 s"),
        (2.46, "2.5 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (754, "13 min"),
        (3599, "1 h 00 min"),
        (3900, "1 h 05 min"),
        (7199, "2 h 00 min"),
        (3_600_000, "1,000 h 00 min"),
    ],
)
def test_durations(seconds, words):
    assert duration(seconds) == words
