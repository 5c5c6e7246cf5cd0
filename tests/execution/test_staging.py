"""Arrays that travel together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vtcore.execution.staging import Results, Staging, aligned_starts


@pytest.mark.parametrize("sizes", [[], [0], [1], [3, 0, 1, 2], [1, 1, 1], [1024, 7, 9]])
def test_every_array_begins_on_16_bytes_and_none_overlap(sizes: list[int]) -> None:
    starts, total = aligned_starts(sizes)
    assert all(start % 2 == 0 for start in starts)
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    assert all(end <= after for end, after in zip(ends, [*starts[1:], total], strict=False))
    assert total <= sum(sizes) + len(sizes)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_is_sent_arrives_however_odd_its_lengths(device: str) -> None:
    staging = Staging(device)
    for round_ in range(9):
        upload = staging.begin()
        arrays = [np.arange(size) + 100 * size + round_ for size in (3, 0, 1, 2, 1500 * (round_ % 2), 5)]
        places = [upload.add(array) for array in arrays]
        sent = upload.send()
        for place, array in zip(places, arrays, strict=True):
            assert sent[place].tolist() == array.tolist()
            if device == "cuda" and len(array):
                assert sent[place].data_ptr() % 16 == 0


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_results_keep_their_shapes(device: str) -> None:
    tensors = [torch.arange(6, device=device).view(2, 3), torch.tensor(7, device=device)]
    first, second = Results(tensors).wait()
    assert first.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert second.tolist() == 7
