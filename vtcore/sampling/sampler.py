"""Picks one token per logit row: processors, greedy or random choice, log probabilities.

Does not: hold request state beside the parameter table, or change the logits it is given. A row's token is
a function of its own logits, parameters, position and history: not of the other rows.

On the CPU every row takes the torch path. Elsewhere rows that need no more than temperature, min-p, top-k and
top-p are drawn by the argmax and sample_tokens ops, which neither read nor upload anything; the others take
the torch path. Its uploads do not wait, but it waits for the device where a row has bad words, host masks or
allowed ids (sent from ordinary memory), and where a caller asks for compaction.

Order (Source: vLLM, v1/sample/sampler.py): host masks and allowed ids, bad words, min_tokens, logit_bias,
repetition, frequency and presence penalty, greedy pick, temperature, min-p, top-k, top-p, random pick.

Two faults of the input end in a token all the same, and are counted: a NaN logit counts as -inf; a row of
which the processors leave nothing is drawn from its raw logits restricted to its allowed ids.

Shape letters: N logit rows, W those of them that need processing, V vocabulary, R table rows, L positions,
K candidate ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from attrs import define, frozen
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.interfaces.batch import TokenLogprobs
from vtcore.layers.dtypes import acc_dtype
from vtcore.ops.argmax.naive import argmax
from vtcore.ops.sample_tokens.naive import sample_tokens
from vtcore.sampling import processors, truncation
from vtcore.sampling.device_params import DeviceParams
from vtcore.sampling.logprobs import DeviceLogprobs, device_logprobs
from vtcore.sampling.noise import Purpose, gumbel
from vtcore.sampling.params_table import FAST, PROCESSED, Feature, Int64s, RowParamsTable, StepParams

_OPS: Mapping[str, Callable[..., Any]] = {"argmax": argmax, "sample_tokens": sample_tokens}
_BYTES_PER_LOGIT = 64
"""Peak of processing one logit: copies in the accumulation dtype, sort keys and indices, noise in float64."""


@frozen
class SamplerCounters:
    """Logit rows so far that had a NaN, and that were left without any id by their processors."""

    num_nan_rows: int
    num_empty_rows: int


@define(slots=False, eq=False)
class SampleOutput:
    """The tokens of one call.

    Args:
        ids_N: [N] int64, on the device.
        parts: Log probabilities on the device, with the logit rows they belong to.
    """

    ids_N: Tensor
    parts: tuple[tuple[Int64s, DeviceLogprobs], ...] = ()

    @cached_property
    def logprobs(self) -> list[TokenLogprobs | None]:
        """One entry per logit row, None for rows that did not ask; the first read waits for the device."""
        found: list[TokenLogprobs | None] = [None] * self.ids_N.shape[0]
        for index_M, part in self.parts:
            for index, entry in zip(index_M.tolist(), part.to_host(), strict=True):
                found[index] = entry
        return found


@frozen(eq=False)
class _Work:
    """The rows being processed: where they are, what they need, and their logits."""

    rows: Int64s
    flags: Int64s
    masks: list[bytes | None]
    params: StepParams
    rows_W: Tensor
    positions_W: Tensor
    logits_WV: Tensor

    def using(self, features: int) -> Int64s:
        """Indices of the rows with any of `features`."""
        return np.flatnonzero(self.flags & features)


class Sampler:
    """Samples logit rows by the parameters of a table.

    Args:
        table: Sampling parameters by row; the caller sets rows as it admits requests.
        is_compacting: Whether noise and top-p run on surviving ids only when few are left. The tokens are the
            same; it needs the number of survivors on the host, so None means: on the CPU.
        max_bytes: Working memory of processed rows; they go through in slices that fit, of at least one row.
        ops: Holds "argmax" and "sample_tokens". None: the naive ones.

    Attributes:
        device_params: What `sample_fast` reads; see `admit`.
    """

    def __init__(
        self,
        table: RowParamsTable,
        *,
        is_compacting: bool | None = None,
        max_bytes: int = 256 << 20,
        ops: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.table = table
        self._on_host = table.device.type == "cpu"
        self._is_compacting = self._on_host if is_compacting is None else is_compacting
        self._rows_per_slice = max(1, max_bytes // (_BYTES_PER_LOGIT * table.vocab_size))
        self._counts = torch.zeros(2, dtype=torch.int64, device=table.device)
        self._ops = _OPS if ops is None else ops
        self.device_params = DeviceParams(table)

    def counters(self) -> SamplerCounters:
        """What has been counted since construction; waits for the device."""
        return SamplerCounters(*self._counts.tolist())

    def admit(self, rows: Sequence[int]) -> None:
        """Bring the parameters of rows that were set to `device_params`, in one copy without waiting."""
        self.device_params.update(rows)

    def needs_random(self, rows: Sequence[int] | Int64s) -> bool:
        """Whether any of the table rows is sampled at a temperature, so that argmax is not enough."""
        return bool((self.table.flags[np.asarray(rows, np.int64)] & int(Feature.RANDOM)).any())

    def is_fast(self, rows: Sequence[int] | Int64s, masks: Sequence[bytes | None] | None = None) -> bool:
        """Whether `sample_fast` yields all these rows ask for: no other processor, no log probabilities.

        Never on the CPU, where `sample` looks at values first and does less.

        Args:
            rows: Table rows; any order, the null row among them or not.
            masks: One host mask or None per entry of `rows`; None: no masks.
        """
        if self._on_host or (masks is not None and any(mask is not None for mask in masks)):
            return False
        slow = (PROCESSED | int(Feature.LOGPROBS)) & ~int(FAST)
        return not (self.table.flags[np.asarray(rows, np.int64)] & slow).any()

    def sample_fast(self, logits_NV: Tensor, rows_N: Tensor, positions_N: Tensor, is_random: bool) -> Tensor:
        """Pick one token per logit row on the device alone; a captured graph may hold it.

        Args:
            logits_NV: Raw logits in the model's dtype; not changed.
            rows_N: [N] int64 table rows on the device; 0 is padding. `is_fast` holds for all of them, and
                they were admitted after they were set.
            positions_N: [N] int64, absolute position of the token drawn.
            is_random: What `needs_random` says; True serves greedy rows too.

        Returns:
            [N] int64 ids below V.
        """
        if not is_random:
            ids_N: Tensor = self._ops["argmax"](logits_NV, self._counts)
            return ids_N
        ids_N = self._ops["sample_tokens"](logits_NV, rows_N, positions_N, self.device_params, self._counts)
        return ids_N

    def sample(
        self,
        logits_NV: Tensor,
        rows: Sequence[int],
        positions_N: Tensor,
        history_RL: Tensor | None = None,
        masks: Sequence[bytes | None] | None = None,
    ) -> SampleOutput:
        """Pick one token per logit row.

        Args:
            logits_NV: Raw logits in the model's dtype; not changed.
            rows: Table row of each logit row, on the host; a table row may come several times (verification).
            positions_N: [N] int64, absolute position of the token drawn.
            history_RL: Int64 or int32; [row, p] is the token at position p, valid for all p below the
                position drawn, drafts included. None if no row needs it.
            masks: One packed host mask or None per logit row, see `processors.unpack_masks`. None: no masks.

        Raises:
            EngineError: Shapes do not fit, a row needs history and there is none, or a mask has a wrong size.
        """
        rows_N = np.asarray(rows, np.int64)
        self._check(logits_NV, rows_N, positions_N, history_RL, masks)
        flags_N = self.table.flags[rows_N]
        if masks is not None:
            flags_N |= np.array([0 if m is None else int(Feature.HOST_MASK) for m in masks], np.int64)
        # What is left for the torch path; the CPU's plain rows are greedy, others are whatever the ops serve.
        work_flags = PROCESSED if self._on_host else PROCESSED & ~int(FAST)
        work = np.flatnonzero(flags_N & work_flags)
        if work.size == 0:
            ids_N = self._pick_plain(logits_NV, rows_N, positions_N)
        else:
            ids_N = torch.empty(len(rows_N), dtype=torch.int64, device=logits_NV.device)
            plain = np.flatnonzero((flags_N & work_flags) == 0)
            if plain.size:
                index = self._index(plain)
                ids_N[index] = self._pick_plain(logits_NV[index], rows_N[plain], positions_N[index])
            for first in range(0, work.size, self._rows_per_slice):
                part = work[first : first + self._rows_per_slice]
                index = self._index(part)
                taken = _Work(
                    rows=rows_N[part],
                    flags=flags_N[part],
                    masks=[None] * part.size if masks is None else [masks[i] for i in part],
                    params=self.table.gather(rows_N[part]),
                    rows_W=self._index(rows_N[part]),
                    positions_W=positions_N[index],
                    logits_WV=self._accumulated(logits_NV[index]),
                )
                ids_N[index] = self._pick(taken, history_RL)
        return SampleOutput(ids_N, self._logprobs(logits_NV, rows_N, flags_N, ids_N))

    def _check(
        self,
        logits_NV: Tensor,
        rows_N: Int64s,
        positions_N: Tensor,
        history_RL: Tensor | None,
        masks: Sequence[bytes | None] | None,
    ) -> None:
        num = len(rows_N)
        if logits_NV.shape != (num, self.table.vocab_size):
            raise EngineError(
                f"logits have shape {tuple(logits_NV.shape)}; {num} rows over a vocabulary of "
                f"{self.table.vocab_size} were expected"
            )
        if positions_N.shape != (num,) or positions_N.dtype != torch.int64:
            raise EngineError(
                f"positions are {positions_N.dtype} {tuple(positions_N.shape)}, int64 ({num},) was expected"
            )
        if masks is not None and len(masks) != num:
            raise EngineError(f"{len(masks)} host masks came with {num} logit rows")
        if history_RL is None and self.table.needs_history(rows_N):
            raise EngineError("a row with penalties or bad words is sampled without token history")

    def _index(self, values: Int64s) -> Tensor:
        return self.table.send(values)

    def _pick_plain(self, logits_NV: Tensor, rows_N: Int64s, positions_N: Tensor) -> Tensor:
        if self._on_host:
            return self._pick_greedy(logits_NV)
        if self.table.changed:
            self.device_params.update(sorted(self.table.changed))
        is_random = self.needs_random(rows_N)
        return self.sample_fast(logits_NV, self._index(rows_N), positions_N, is_random)

    def _accumulated(self, logits_NV: Tensor) -> Tensor:
        """A copy in the accumulation dtype without NaN and +inf; rows with a NaN are counted."""
        copy_NV = logits_NV.to(acc_dtype(logits_NV.dtype))
        self._counts[0] += copy_NV.amax(dim=1).isnan().sum()
        return copy_NV.nan_to_num(nan=-torch.inf, neginf=-torch.inf)

    def _pick_greedy(self, logits_NV: Tensor) -> Tensor:
        """The lowest id with the largest raw logit; torch.max documents that the first index is returned."""
        largest_N, ids_N = logits_NV.max(dim=1)
        is_nan_N = largest_N.isnan()
        if not bool(is_nan_N.any()):
            return ids_N
        self._counts[0] += is_nan_N.sum()
        clean_NV = logits_NV.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        return torch.where(is_nan_N, clean_NV.argmax(dim=1), ids_N)

    def _pick(self, work: _Work, history_RL: Tensor | None) -> Tensor:
        logits_WV = self._processed(work, history_RL)
        largest_W, greedy_W = logits_WV.max(dim=1)
        random = work.using(Feature.RANDOM)
        if random.size == 0:
            return greedy_W
        if random.size == work.rows.size:
            return self._pick_random(logits_WV, largest_W, work, random)
        index = self._index(random)
        greedy_W[index] = self._pick_random(logits_WV[index], largest_W[index], work, random)
        return greedy_W

    def _processed(self, work: _Work, history_RL: Tensor | None) -> Tensor:
        """Logits after every processor; each row keeps at least one finite value."""
        x_WV = work.logits_WV.clone()
        table, params = self.table, work.params
        if (used := work.using(Feature.HOST_MASK)).size:
            given = [mask for i in used if (mask := work.masks[i]) is not None]
            is_allowed = processors.unpack_masks(given, table.vocab_size, table.device)
            index = self._index(used)
            x_WV[index] = x_WV[index].masked_fill_(~is_allowed, -torch.inf)
        for i in work.using(Feature.ALLOWED):
            processors.restrict_row(x_WV[i], table.lists(work.rows[i]).allowed)
        if (used := work.using(Feature.BAD_WORDS)).size and history_RL is not None:
            words = [(int(i), word) for i in used for word in table.lists(work.rows[i]).bad_words]
            processors.ban_bad_words(x_WV, words, work.rows_W, work.positions_W, history_RL)
        if (used := work.using(Feature.MIN_TOKENS)).size:
            stops = [table.lists(work.rows[i]).stop_ids for i in used]
            index_P = self._repeated(used, stops)
            is_early_W = work.positions_W - params.prompt_len < params.min_tokens
            processors.ban(x_WV, index_P, table.upload(stops), is_early_W[index_P])
        if (used := work.using(Feature.BIAS)).size:
            lists = [table.lists(work.rows[i]) for i in used]
            biased = [entry.bias_ids for entry in lists]
            bias_P = table.upload([entry.bias for entry in lists])
            processors.add_bias(x_WV, self._repeated(used, biased), table.upload(biased), bias_P)
        if history_RL is not None:
            self._penalize(x_WV, work, history_RL)
        return self._rescue_empty(x_WV, work)

    def _penalize(self, x_WV: Tensor, work: _Work, history_RL: Tensor) -> None:
        params, table = work.params, self.table
        penalties = ((Feature.REPETITION, False), (Feature.OUTPUT_PENALTY, True))
        for feature, is_output_only in penalties:
            used = work.using(feature)
            if used.size == 0:
                continue
            index = self._index(used)
            end = work.positions_W[index]
            first = params.prompt_len[index] if is_output_only else torch.zeros_like(end)
            length = int(end.max()) if self._on_host else history_RL.shape[1]
            history = history_RL[work.rows_W[index], :length]
            counts = processors.token_counts(history, first, end, table.vocab_size, x_WV.dtype)
            logits = x_WV[index]
            if is_output_only:
                processors.penalize_output(logits, counts, params.frequency[index], params.presence[index])
            else:
                processors.penalize_repetition(logits, counts, params.repetition[index])
            x_WV[index] = logits

    def _rescue_empty(self, x_WV: Tensor, work: _Work) -> Tensor:
        is_empty_W = x_WV.amax(dim=1) == -torch.inf
        if self._on_host and not bool(is_empty_W.any()):
            return x_WV
        self._counts[1] += is_empty_W.sum()
        allowed = [
            self.table.lists(row).allowed if flags & Feature.ALLOWED else None
            for row, flags in zip(work.rows, work.flags, strict=True)
        ]
        fallback_WV = processors.fallback_logits(work.logits_WV, allowed)
        return torch.where(is_empty_W.unsqueeze(1), fallback_WV, x_WV)

    def _pick_random(self, logits_MV: Tensor, largest_M: Tensor, work: _Work, random: Int64s) -> Tensor:
        """Gumbel argmax over rows `random` of `work`, whose logits and largest logits come first."""
        table = self.table
        index = self._index(random)
        rows, flags, params = work.rows[random], work.flags[random], table.gather(work.rows[random])
        # The largest is subtracted before the division: a tiny temperature then cannot overflow.
        z_MK = (logits_MV - largest_M.unsqueeze(1)) / params.temperature.to(logits_MV.dtype)
        if (used := np.flatnonzero(flags & Feature.MIN_P)).size:
            part = self._index(used)
            z_MK[part] = truncation.cut_min_p(z_MK[part], params.min_p[part])
        if (used := np.flatnonzero(flags & Feature.TOP_K)).size:
            part = self._index(used)
            largest_k = int(table.top_k[rows[used]].max())
            z_MK[part] = truncation.cut_top_k(z_MK[part], params.top_k[part], largest_k)
        z_MK, ids_MK = self._survivors(z_MK)
        if (used := np.flatnonzero(flags & Feature.TOP_P)).size:
            part = self._index(used)
            z_MK[part] = truncation.cut_top_p(z_MK[part], params.top_p[part])
        noise_MK = gumbel(params.seed, work.positions_W[index], ids_MK, Purpose.TARGET)
        picked_M1 = noise_MK.add_(z_MK).argmax(dim=1, keepdim=True)
        return picked_M1.squeeze(1) if ids_MK.dim() == 1 else ids_MK.gather(1, picked_M1).squeeze(1)

    def _survivors(self, z_MV: Tensor) -> tuple[Tensor, Tensor]:
        """Candidates and their ids: [M, K] each if few are left, else [M, V] and [V]."""
        vocab_size = z_MV.shape[1]
        if self._is_compacting:
            num = int((z_MV > -torch.inf).sum(dim=1).max())
            if 4 * num <= vocab_size:
                return truncation.compact(z_MV, num)
        return z_MV, torch.arange(vocab_size, device=z_MV.device)

    def _repeated(self, used: Int64s, lists: Sequence[Int64s]) -> Tensor:
        return self._index(np.repeat(used, [len(ids) for ids in lists]))

    def _logprobs(
        self, logits_NV: Tensor, rows_N: Int64s, flags_N: Int64s, ids_N: Tensor
    ) -> tuple[tuple[Int64s, DeviceLogprobs], ...]:
        """Rows that ask, grouped by how many ids they ask for."""
        asked = np.flatnonzero(flags_N & Feature.LOGPROBS)
        num_top = self.table.num_logprobs[rows_N[asked]]
        parts = []
        for num in np.unique(num_top):
            members = asked[num_top == num]
            for first in range(0, members.size, self._rows_per_slice):
                part = members[first : first + self._rows_per_slice]
                index = self._index(part)
                parts.append((part, device_logprobs(logits_NV[index], ids_N[index], int(num))))
        return tuple(parts)
