"""The policies that come with the core pass the kit that it gives to others."""

from __future__ import annotations

from vtcore.scheduling.policies.fcfs import FcfsPolicy
from vtcore.scheduling.policies.lpm import LpmPolicy
from vtcore.scheduling.policies.priority import PriorityPolicy
from vtcore.testing.policy_kit import SchedulerPolicyConformance


class TestFcfs(SchedulerPolicyConformance):
    policy = FcfsPolicy
    num_schedules = 1


class TestPriority(SchedulerPolicyConformance):
    policy = PriorityPolicy
    num_schedules = 1


class TestLpm(SchedulerPolicyConformance):
    policy = LpmPolicy
    num_schedules = 1
