# SPDX-License-Identifier: Apache-2.0
"""Files of GPU measurements: nova-scheduler reads them at its start, which no mistake in them may stop."""

from pathlib import Path

import pytest

from nova_numa_ext.gpu_files import read_distances, read_profiles
from placement_traits.errors import InvalidValueError

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "data",
    [
        b"measured: 2026-13-45",
        b"[" * 100_000,
        b"{a: " * 100_000,
        b"a: \xff",
        b"a: 0b2",
        b"a: {pack_s: [1, 2, 3, 4, 1" + b"0" * 5000 + b"]}",
        BOMB.encode(),
        b"a: {gpus: [x, y], distances: [[0, true], [true, 0]]}",
        b"a: {gpus: [x, y], distances: [[0, 1" + b"0" * 400 + b"], [1" + b"0" * 400 + b", 0]]}",
        b"a: {gpus: [x, y], distances: [[0, .inf], [.inf, 0]]}",
    ],
    ids=lambda data: data[:24].decode(errors="replace"),
)
@pytest.mark.parametrize("read", [read_profiles, read_distances])
def test_a_file_that_makes_no_sense_is_refused_in_one_short_sentence(
    tmp_path: Path, data: bytes, read: object
) -> None:
    path = tmp_path / "measured.yaml"
    path.write_bytes(data)
    assert callable(read)
    with pytest.raises(InvalidValueError) as caught:
        read(path, "[numa_ext]gpu_profiles")
    sentence = str(caught.value)
    assert sentence.startswith("[numa_ext]gpu_profiles")
    assert len(sentence) < 3000
