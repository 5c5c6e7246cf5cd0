"""Noise is a pure function of its key, uniform, and free of correlation in each part of the key."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vtcore.request import child_seed
from vtcore.sampling.noise import Purpose, gumbel, uniform

MASK = 2**64 - 1


def oracle_mix(z: int) -> int:
    """SplitMix64's finaliser, from the paper's description, on unsigned Python ints."""
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & MASK
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def oracle_uniform(seed: int, position: int, token_id: int, purpose: int) -> float:
    step = 0x9E3779B97F4A7C15
    key = oracle_mix((seed + step * (purpose + 1)) & MASK)
    key = oracle_mix((key + step * (position + 1)) & MASK)
    key = oracle_mix((key + step * (token_id + 1)) & MASK)
    return ((key >> 12) + 0.5) / 2**52


def numbers(seed: int, position: int, count: int, purpose: int = 0) -> Tensor:
    return uniform(torch.tensor([seed]), torch.tensor([position]), torch.arange(count), purpose)[0]


@given(
    seed=st.integers(0, 2**63 - 1),
    position=st.integers(0, 2**40),
    token_id=st.integers(0, 2**31),
    purpose=st.integers(0, 40),
)
@settings(max_examples=300, deadline=None)
def test_noise_equals_an_integer_implementation(
    seed: int, position: int, token_id: int, purpose: int
) -> None:
    expected = oracle_uniform(seed, position, token_id, purpose)
    key = (torch.tensor([seed]), torch.tensor([position]), torch.tensor([token_id]), purpose)
    assert uniform(*key).item() == expected
    assert gumbel(*key).item() == pytest.approx(-math.log(-math.log(expected)), rel=1e-13, abs=1e-15)


def test_first_splitmix_outputs_are_the_published_ones() -> None:
    """Seed 1234567 of SplitMix64 starts with these (Rosetta Code, Pseudo-random numbers/Splitmix64)."""
    step = 0x9E3779B97F4A7C15
    outputs = [oracle_mix((1234567 + step * i) & MASK) for i in (1, 2, 3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_extreme_bits_stay_inside_the_open_interval() -> None:
    low, high = 0.5 / 2**52, (2**52 - 1 + 0.5) / 2**52
    assert low > 0.0
    assert high < 1.0
    assert math.isfinite(-math.log(-math.log(low)))
    assert math.isfinite(-math.log(-math.log(high)))


def test_noise_does_not_depend_on_batch_shape_or_on_the_other_ids() -> None:
    seeds, positions = torch.tensor([3, 2**62, 3, 7]), torch.tensor([0, 5, 9, 5])
    whole = gumbel(seeds, positions, torch.arange(1003), Purpose.TARGET)
    for row in (3, 0, 2, 1):
        one = gumbel(seeds[row : row + 1], positions[row : row + 1], torch.arange(1003), Purpose.TARGET)
        assert torch.equal(one[0], whole[row])
    chosen = torch.tensor([[1, 5, 1000], [0, 2, 4], [7, 8, 9], [1002, 1, 1]])
    assert torch.equal(gumbel(seeds, positions, chosen, Purpose.TARGET), whole.gather(1, chosen))


def test_key_tensors_are_not_changed() -> None:
    seeds, positions, ids = torch.tensor([5]), torch.tensor([6]), torch.tensor([7, 8])
    gumbel(seeds, positions, ids, Purpose.DRAFT)
    assert (seeds.tolist(), positions.tolist(), ids.tolist()) == ([5], [6], [7, 8])


AXES = ("seed", "position", "id", "purpose")


def along(axis: str, count: int) -> Tensor:
    """`count` numbers whose key differs in one part only, by 1 from each to the next."""
    steps = torch.arange(count)
    zero = torch.zeros_like(steps)
    if axis == "purpose":
        return torch.stack([numbers(11, 17, 1, purpose)[0] for purpose in range(count)])
    seeds = steps + 11 if axis == "seed" else zero + 11
    positions = steps if axis == "position" else zero + 17
    ids = (steps if axis == "id" else zero + 19).unsqueeze(1)
    return uniform(seeds, positions, ids, 0)[:, 0]


@pytest.mark.parametrize("axis", AXES)
def test_numbers_along_each_part_of_the_key_are_uniform(axis: str) -> None:
    count = 2_000 if axis == "purpose" else 100_000
    bins = torch.histc(along(axis, count), bins=100, min=0.0, max=1.0)
    statistic = ((bins - count / 100) ** 2 / (count / 100)).sum().item()
    assert 50 < statistic < 160  # chi-square with 99 degrees of freedom leaves this with probability 1e-4


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("lag", [1, 2, 16])
def test_neighbours_in_each_part_of_the_key_are_uncorrelated(axis: str, lag: int) -> None:
    count = 2_000 if axis == "purpose" else 100_000
    u = along(axis, count) - 0.5
    correlation = (u[lag:] * u[:-lag]).mean().item() * 12
    assert abs(correlation) < 4.5 / math.sqrt(count)


def test_gumbel_noise_has_its_mean_and_variance() -> None:
    g = gumbel(torch.arange(100), torch.arange(100), torch.arange(2000), Purpose.TARGET)
    assert g.mean().item() == pytest.approx(0.5772156649, abs=0.012)
    assert g.var().item() == pytest.approx(math.pi**2 / 6, abs=0.04)


def test_purposes_give_different_numbers() -> None:
    drawn = [numbers(1, 1, 50, purpose).tolist() for purpose in Purpose]
    assert len({tuple(values) for values in drawn}) == len(Purpose)


def test_child_seeds_are_distinct_in_range_and_start_with_the_parent() -> None:
    parents = (0, 1, 2, 12345, 2**63 - 1)
    seeds = [child_seed(parent, index) for parent in parents for index in range(200)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert [child_seed(parent, 0) for parent in parents] == list(parents)
