"""CUDA graphs of steps that hold uniform rows only, one pair per batch bucket and number of drafts.

Graph A prepares the step and runs the model to its final hidden; graph B holds head, sampling and the tables'
update, once for greedy rows and once for any. Between them the host may look at the hidden.
Does not: choose buckets, or serve steps with prefill rows.

Shape letters: B rows of the step, padding included; N logit rows.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import define, evolve, field
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.execution.step_builder import PreparedStep
from vtcore.interfaces.batch import ScheduledBatch
from vtcore.interfaces.model_arch import ForwardOutput
from vtcore.interfaces.step import StepInputs

Prepare = Callable[[Tensor, int], PreparedStep]
"""(table rows [B], drafts verified) -> the step."""
Forward = Callable[[StepInputs], ForwardOutput]
Sample = Callable[[PreparedStep, ForwardOutput, bool], tuple[Tensor, Tensor]]
"""(step, its forward, whether rows draw at random) -> ids [N] and tokens each row emits [B]."""


class CaptureError(Exception):
    """A model cannot be captured in a graph."""


def batch_buckets(max_num_seqs: int) -> tuple[int, ...]:
    """Rows of the captured steps, ascending; the last is `max_num_seqs`.

    A step is padded to less than twice its rows, and by fewer than 32: a row costs most where there are
    few. Source: the set of vLLM's default cudagraph_capture_sizes, thinned.
    """
    sizes = [1, 2, 4, 8, 16, 24, 32, 48, 64, *range(96, max_num_seqs, 32)]
    return (*(size for size in sizes if size < max_num_seqs), max_num_seqs)


@define(eq=False)
class CapturedStep:
    """The graphs of one size with the tensors that they read and write.

    Args:
        rows_B: Table rows, written before each replay.
        samples: By whether rows draw at random: the graph, ids and emitted counts.
    """

    rows_B: Tensor
    prepared: PreparedStep
    output: ForwardOutput
    forward: torch.cuda.CUDAGraph
    samples: dict[bool, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = field(factory=dict)

    @property
    def can_sample(self) -> bool:
        """Whether there is a graph B."""
        return bool(self.samples)

    def padded(self, rows: Sequence[int]) -> list[int]:
        """Table rows filled up with the null row."""
        return [*rows, *[0] * (self.rows_B.shape[0] - len(rows))]

    def replay(self, rows_B: Tensor) -> tuple[PreparedStep, ForwardOutput]:
        """Run graph A for as many table rows as it has."""
        self.rows_B.copy_(rows_B)
        self.forward.replay()
        return self.prepared, self.output

    def sample(self, is_random: bool) -> tuple[Tensor, Tensor]:
        """Run graph B; its results hold until the next replay."""
        graph, ids_N, emitted_B = self.samples[is_random]
        graph.replay()
        return ids_N, emitted_B

    def cut(self, num_rows: int) -> PreparedStep:
        """The step without its padding, as views."""
        inputs, query = self.prepared.inputs, self.prepared.inputs.query_len
        own = evolve(
            inputs,
            ids=inputs.ids[: num_rows * query],
            positions=inputs.positions[: num_rows * query],
            num_uniform=num_rows,
            computed=inputs.computed[:num_rows],
            query_lens=inputs.query_lens[:num_rows],
            query_start=inputs.query_start[: num_rows + 1],
        )
        return PreparedStep(
            own,
            self.prepared.rows_B[:num_rows],
            self.prepared.drafts_UK[:num_rows],
            self.prepared.num_illegal,
        )


class StepGraphs:
    """All captured sizes.

    Args:
        prepare, forward: What graph A holds.
        sample: What graph B holds; None captures none.
        sizes: Rows, ascending.
        captured_k: Drafts verified.
        device: A GPU.
    """

    def __init__(
        self,
        prepare: Prepare,
        forward: Forward,
        sample: Sample | None,
        sizes: Sequence[int],
        captured_k: Sequence[int],
        device: torch.device,
    ) -> None:
        self._prepare, self._forward, self._sample = prepare, forward, sample
        self._sizes = tuple(sizes)
        self._captured_k = tuple(captured_k)
        self._device = device
        self._steps: dict[tuple[int, int], CapturedStep] = {}
        self.num_replays = 0
        self.seconds = 0.0
        self.num_bytes = 0

    @property
    def keys(self) -> tuple[tuple[int, int], ...]:
        """(rows, drafts verified) of every captured step."""
        return tuple(sorted(self._steps))

    def find(self, batch: ScheduledBatch) -> CapturedStep | None:
        """The smallest captured step that holds the batch; None if it must run eagerly."""
        if batch.prefill or not batch.uniform:
            return None
        at = bisect_left(self._sizes, len(batch.uniform))
        if at == len(self._sizes):
            return None
        found = self._steps.get((self._sizes[at], batch.num_drafts_in))
        self.num_replays += found is not None
        return found

    def capture(self) -> None:
        """Capture every size, the largest first, so that the others fit into its memory.

        Raises:
            CaptureError: Something in the step waits for the device.
            torch.OutOfMemoryError: They do not fit beside the caches.
        """
        # A capture frees what torch holds unused; freed before, it is not taken for room that graphs left.
        torch.cuda.empty_cache()
        started, free = time.monotonic(), torch.cuda.mem_get_info(self._device)[0]
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        try:
            with torch.cuda.stream(stream):
                for k in self._captured_k:
                    for size in reversed(self._sizes):
                        self._steps[size, k] = self._capture(size, k, pool, stream)
        except torch.OutOfMemoryError:
            self._steps.clear()
            raise
        except (RuntimeError, EngineError) as error:
            self._steps.clear()
            torch.cuda.synchronize(self._device)
            raise CaptureError(f"the model cannot be captured in a CUDA graph: {error}") from error
        torch.cuda.current_stream(self._device).wait_stream(stream)
        torch.cuda.synchronize(self._device)
        self.seconds = time.monotonic() - started
        self.num_bytes = max(0, free - torch.cuda.mem_get_info(self._device)[0])

    def _capture(self, size: int, k: int, pool: Any, stream: torch.cuda.Stream) -> CapturedStep:
        rows_B = torch.zeros(size, dtype=torch.int64, device=self._device)
        kinds = () if self._sample is None else (False, True)
        # Once eagerly: libraries set themselves up at the first call, which a capture would record.
        prepared = self._prepare(rows_B, k)
        output = self._forward(prepared.inputs)
        for is_random in kinds:
            assert self._sample is not None
            self._sample(prepared, output, is_random)
        stream.synchronize()
        forward = torch.cuda.CUDAGraph()
        with torch.cuda.graph(forward, pool=pool, stream=stream):
            prepared = self._prepare(rows_B, k)
            output = self._forward(prepared.inputs)
        step = CapturedStep(rows_B, prepared, output, forward)
        for is_random in kinds:
            assert self._sample is not None
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                ids_N, emitted_B = self._sample(prepared, output, is_random)
            step.samples[is_random] = (graph, ids_N, emitted_B)
        return step
