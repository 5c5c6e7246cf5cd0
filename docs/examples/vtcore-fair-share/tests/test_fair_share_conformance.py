"""The policy keeps to vtcore's contract, whatever its options: the conformance kit."""

from __future__ import annotations

import pytest
from vtcore_fair_share import plugin
from vtcore_fair_share.policy import FairSharePolicy

from vtcore.testing.policy_kit import SchedulerPolicyConformance


class TestFairShare(SchedulerPolicyConformance):
    plugin = plugin
    policy = FairSharePolicy
    num_schedules = 3
    configs = ({}, {"weights": {"a": 5, "b": 0.5}, "default_weight": 2.0, "output_cost": 1.0})
    bad_configs = (
        {"weights": {"a": 0}},
        {"weights": {"a": 1e7}},
        {"weights": ["a"]},
        {"default_weight": -1.0},
        {"prompt_cost": 0.0},
        {"output_cost": 1e7},
    )
    bad_args = ({"weight": 2},)


@pytest.mark.slow
class TestFairShareAtLength(TestFairShare):
    num_schedules = 40
