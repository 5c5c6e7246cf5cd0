"""The conformance kit of a model architecture: subclass `ArchConformance` in the plugin's tests.

Does not: hold rules itself; they lie by subject in the files named `arch_`.
"""

from __future__ import annotations

from vtcore.testing.arch_checkpoint import ArchCheckpoint
from vtcore.testing.arch_gpu import ArchGpu
from vtcore.testing.arch_logits import ArchLogits as ArchLogits
from vtcore.testing.arch_null_rows import ArchNullRows
from vtcore.testing.arch_precision import ArchPrecision
from vtcore.testing.arch_schedules import ArchSchedules
from vtcore.testing.arch_subject import ArchSubject as ArchSubject
from vtcore.testing.arch_subject import MeasuredBound as MeasuredBound


class ArchConformance(ArchLogits, ArchCheckpoint, ArchSchedules, ArchPrecision, ArchNullRows, ArchGpu):
    """Every rule; `ArchSubject` says what the author gives.

    `ArchLogits` alone holds the rules of logits, for further configs of a model that keeps to all of them.
    """
