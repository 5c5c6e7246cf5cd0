"""Host mirror of each row's sampling parameters, and what a step gathers from it.

Does not: check requests (vtcore/request.py does) or touch logits.

Shape letters: N logit rows of a step, P (logit row, id) pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntFlag

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.interfaces.batch import RowParams

GREEDY_BELOW = 1e-5
"""A temperature below it is greedy. Source: vLLM, v1/sample/sampler.py, _SAMPLING_EPS."""

Int64s = NDArray[np.int64]


class Feature(IntFlag):
    """What a row needs beyond the argmax of its raw logits."""

    RANDOM = 1
    ALLOWED = 2
    BAD_WORDS = 4
    MIN_TOKENS = 8
    BIAS = 16
    REPETITION = 32
    OUTPUT_PENALTY = 64
    MIN_P = 128
    TOP_K = 256
    TOP_P = 512
    LOGPROBS = 1024
    HOST_MASK = 2048


PROCESSED = sum(int(feature) for feature in Feature if feature is not Feature.LOGPROBS)
"""Features that change which token is picked; a row without any is plain greedy."""
FAST = Feature.RANDOM | Feature.MIN_P | Feature.TOP_K | Feature.TOP_P
"""Features that the sample_tokens op serves."""
_HISTORY = Feature.BAD_WORDS | Feature.REPETITION | Feature.OUTPUT_PENALTY
PACKED_COLUMNS = ("temperature", "min_p", "top_p", "seed", "top_k")
"""Parameters in the order of `RowParamsTable.pack`, after the row."""


@frozen(eq=False)
class RowLists:
    """The parts of one row's parameters that have no fixed length, int64 unless said."""

    stop_ids: Int64s
    allowed: Int64s
    bias_ids: Int64s
    bias: NDArray[np.float64]
    bad_words: tuple[tuple[int, ...], ...]


@frozen(eq=False)
class StepParams:
    """Parameters gathered for N logit rows, on the device.

    Args:
        temperature, min_p, top_p, repetition, presence, frequency: [N, 1] float64.
        seed, prompt_len, top_k, min_tokens: [N] int64.
    """

    temperature: Tensor
    min_p: Tensor
    top_p: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    seed: Tensor
    prompt_len: Tensor
    top_k: Tensor
    min_tokens: Tensor


class RowParamsTable:
    """Parameters by table row; row 0, the null row, stays plain greedy.

    Args:
        max_rows: Table rows, the null row included.
        vocab_size: Ids are 0 <= id < vocab_size.
        device: Where gathered tensors go.
    """

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device | str) -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self.flags: Int64s = np.zeros(max_rows, np.int64)
        self.num_logprobs: Int64s = np.zeros(max_rows, np.int64)
        self._floats = np.zeros((max_rows, 6), np.float64)
        self._ints = np.zeros((max_rows, 4), np.int64)
        self.top_k = self._ints[:, 2]
        self.changed: set[int] = set()
        """Rows that were set after they were packed last."""
        self._lists: list[RowLists | None] = [None] * max_rows

    def set(self, row: int, params: RowParams, prompt_len: int) -> None:
        """Replace what is known of `row`, when a request is admitted to it.

        Args:
            row: 1 <= row < max_rows.
            params: Resolved parameters. Stop ids and bad words outside the vocabulary can never be
                generated and are dropped.
            prompt_len: In tokens; a token at a position >= prompt_len is output.

        Raises:
            EngineError: The row does not exist, or a biased or allowed id is outside the vocabulary: the
                front end let a request through that it should have refused.
        """
        if not 1 <= row < len(self._lists):
            raise EngineError(f"row {row} is not a table row: 1 to {len(self._lists) - 1} are")
        ids = [i for i, _ in params.logit_bias] + list(params.allowed_token_ids or ())
        if wrong := [i for i in ids if not 0 <= i < self.vocab_size]:
            raise EngineError(
                f"row {row} biases or allows id {wrong[0]} outside a vocabulary of {self.vocab_size}; "
                f"check_prompt refuses such a request"
            )
        if params.allowed_token_ids is not None and not params.allowed_token_ids:
            raise EngineError(f"row {row} allows no id at all; SamplingParams refuses such a request")
        lists = RowLists(
            stop_ids=np.array([i for i in params.stop_ids if 0 <= i < self.vocab_size], np.int64),
            allowed=np.array(params.allowed_token_ids or (), np.int64),
            bias_ids=np.array([i for i, _ in params.logit_bias], np.int64),
            bias=np.array([b for _, b in params.logit_bias], np.float64),
            bad_words=tuple(w for w in params.bad_words if w and all(0 <= i < self.vocab_size for i in w)),
        )
        self._lists[row] = lists
        self.flags[row] = self._features(params, lists)
        self.num_logprobs[row] = 0 if params.logprobs is None else params.logprobs
        p = params
        self._floats[row] = (
            p.temperature,
            p.min_p,
            p.top_p,
            p.repetition_penalty,
            p.presence_penalty,
            p.frequency_penalty,
        )
        self._ints[row] = (p.seed, prompt_len, p.top_k, p.min_tokens)
        self.changed.add(row)

    def _features(self, params: RowParams, lists: RowLists) -> int:
        random = params.temperature >= GREEDY_BELOW
        present = {
            Feature.RANDOM: random,
            Feature.ALLOWED: params.allowed_token_ids is not None,
            Feature.BAD_WORDS: bool(lists.bad_words),
            Feature.MIN_TOKENS: params.min_tokens > 0 and lists.stop_ids.size > 0,
            Feature.BIAS: bool(params.logit_bias),
            Feature.REPETITION: params.repetition_penalty != 1.0,
            Feature.OUTPUT_PENALTY: params.presence_penalty != 0.0 or params.frequency_penalty != 0.0,
            Feature.MIN_P: random and params.min_p > 0.0,
            Feature.TOP_K: random and 0 < params.top_k < self.vocab_size,
            Feature.TOP_P: random and params.top_p < 1.0,
            Feature.LOGPROBS: params.logprobs is not None,
        }
        return sum(int(feature) for feature, is_used in present.items() if is_used)

    def needs_history(self, rows: Sequence[int] | Int64s) -> bool:
        """Whether any of `rows` reads the tokens before the position that is drawn."""
        return bool((self.flags[np.asarray(rows, np.int64)] & int(_HISTORY)).any())

    def gather(self, rows_N: Int64s) -> StepParams:
        """Fixed-size parameters of the given table rows, in two uploads."""
        floats, ints = self.send(self._floats[rows_N]), self.send(self._ints[rows_N])
        return StepParams(*floats.split(1, dim=1), *ints.unbind(1))

    def lists(self, row: int) -> RowLists:
        """Variable-size parameters of a row that was set.

        Raises:
            EngineError: It never was.
        """
        lists = self._lists[row]
        if lists is None:
            raise EngineError(f"row {row} is sampled before its parameters were set")
        return lists

    def upload(self, values: Iterable[NDArray[np.int64]] | Iterable[NDArray[np.float64]]) -> Tensor:
        """Concatenate host arrays of one dtype and bring them to the device."""
        return self.send(np.concatenate(list(values)))

    def pack(self, rows: Sequence[int]) -> Int64s:
        """[n, 1 + len(PACKED_COLUMNS)]: each row's number, then its parameters, floats as their bits."""
        rows_N = np.asarray(rows, np.int64)
        self.changed.difference_update(rows)
        floats = np.ascontiguousarray(self._floats[rows_N, :3]).view(np.int64)
        return np.concatenate((rows_N[:, None], floats, self._ints[rows_N][:, (0, 2)]), axis=1)

    def send(self, array: Int64s | NDArray[np.float64]) -> Tensor:
        """Bring a host array to the device, on cuda through pinned memory and without waiting."""
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":
            # torch keeps a pinned buffer from reuse until the copy out of it has been made.
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)
