"""The kit's rules of one model over hand-made steps: logits, chunks, batch mates, poisoned memory, captures.

Does not: use the scheduler or the engine; `vtcore.testing.arch_schedules` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from vtcore.testing.arch_subject import RELATIVE, SAME, ArchSubject, assert_close
from vtcore.testing.kit import since
from vtcore.testing.model_harness import Harness, Prefill, Row, Uniform, accept


class ArchLogits(ArchSubject):
    """All in float64, against the reference.

    Attributes:
        lengths: Prompt lengths in tokens, around the edges of blocks and chunks.
        cuts: Where a prompt of 130 tokens is cut in two.
        draft_prompts: Tokens before the first verified draft.
    """

    lengths: ClassVar[Sequence[int]] = (1, 2, 3, 5, 63, 64, 65, 130, 200)
    draft_prompts: ClassVar[Sequence[int]] = (1, 2, 9)
    cuts: ClassVar[Sequence[int]] = (1, 2, 3, 4, 31, 32, 33, 63, 64, 65, 127, 128, 129)

    @since("0.1")
    def test_logits_equal_the_reference(self) -> None:
        """Logits of a whole prompt are the reference's, within 1e-8 of the largest, for every length."""
        harness = self.build()
        for length in self.lengths:
            ids = self.ids(length)
            wanted = self.reference_logits(ids)
            assert_close(harness.run_sequence(ids, [length]), wanted, RELATIVE, f"{length} tokens")

    @since("0.1")
    def test_decoding_equals_the_reference(self) -> None:
        """Decoding one by one gives the logits of one prefill of all tokens."""
        harness = self.build()
        for prompt in (1, 2, 4, 70):
            ids = self.ids(prompt + 20)
            wanted = self.reference_logits(ids)
            assert_close(harness.run_sequence(ids, [prompt]), wanted, RELATIVE, f"{prompt} + 20 tokens")

    @since("0.1")
    def test_a_prompt_in_chunks_equals_the_whole(self) -> None:
        """A prompt cut in two anywhere, or into equal chunks of any length, gives the same logits."""
        harness, ids = self.build(), self.ids(130)
        whole = self.reference_logits(ids)
        for cut in self.cuts:
            found = harness.run_sequence(ids, [cut, 130 - cut])
            assert_close(found, whole, SAME, f"130 tokens cut at {cut}")
        ids = ids[:70]
        for chunk in (1, 2, 3, 7, 64):
            chunks = [min(chunk, 70 - start) for start in range(0, 70, chunk)]
            assert_close(harness.run_sequence(ids, chunks), whole[:70], SAME, f"chunks of {chunk}")

    @since("0.1")
    def test_batch_mates_do_not_matter(self) -> None:
        """Rows of one step (decoding, verifying, prefilling) give what each gives alone."""
        query = 3 if self.can_roll_back() else 1
        harness = self.build(columns=query)
        known = [self.ids(length, seed=length) for length in (5, 17, 70, 1)]
        rows = [_prefilled(harness, ids) for ids in known]
        verify = [self.ids(query, seed=50 + index) for index in range(3)]
        first, more = self.ids(67, 90), self.ids(2, 91)
        logits = harness.logits(
            uniform=[Uniform(row, ids, query) for row, ids in zip(rows[:3], verify, strict=True)],
            prefill=[Prefill(harness.admit(), first), Prefill(rows[3], more)],
        )
        wanted = [
            *(self.reference_logits(known[i] + verify[i])[-query:] for i in range(3)),
            self.reference_logits(first),
            self.reference_logits(known[3] + more)[1:],
        ]
        assert_close(logits, torch.cat(wanted), SAME, "a mixed step")
        following = harness.logits(uniform=[Uniform(row, [5], 1) for row in rows], slack=13)
        ends = [known[i] + verify[i] for i in range(3)] + [known[3] + more]
        wanted = [self.reference_logits([*ids, 5])[-1:] for ids in ends]
        assert_close(following, torch.cat(wanted), SAME, "the step after it")

    @since("0.1")
    def test_poisoned_memory_does_not_matter(self) -> None:
        """Units are handed out poisoned (states zeroed), again and again, and no poison shows."""
        harness, ids = self.build(), self.ids(11, 4)
        wanted = self.reference_logits(ids)
        for trial in range(20):
            first = 1 + trial % 4
            found = harness.run_sequence(ids, [first, 5])
            assert_close(found, wanted, SAME, f"sequence {trial} on used memory, first chunk {first}")

    @since("0.1")
    def test_only_a_rows_own_units_are_written(self) -> None:
        """Rows without a query, padding rows and the null unit keep every byte; their outputs are finite."""
        for query in (1, 3) if self.can_roll_back() else (1,):
            harness = self.build(columns=query)
            active = _prefilled(harness, self.ids(5, 1))
            idle = _prefilled(harness, self.ids(6, 2))
            padding = Row({pool: [] for pool in harness.paged}, [0] * query)
            for row in (active, idle):
                harness.commit(row)
            before = harness.snapshot()
            ids = self.ids(query, 3)
            out = harness.step(
                uniform=[Uniform(padding, ids, 0), Uniform(active, ids, query), Uniform(idle, ids, 0)]
            )
            assert bool(out.hidden.isfinite().all()), "a row without a query has an output that is not finite"
            changed = harness.changed(before, besides=active)
            assert not changed, f"a step wrote units that are not its row's own: {', '.join(changed)}"
            wanted = self.reference_logits([*self.ids(6, 2), 3])[-1]
            found = harness.logits(uniform=[Uniform(idle, [3], 1)])[0]
            assert_close(found, wanted, SAME, "a row that sat out a step")

    @since("0.1")
    def test_verified_drafts_equal_decoding(self) -> None:
        """Queries of 1 + k tokens, rejected at every position, equal decoding one by one; so does k = 0."""
        if not self.can_roll_back():
            return
        vocab_size = self.vocab_size()
        for query in (2, 3, 4):
            for prompt in self.draft_prompts:
                ids = self.ids(prompt + 24, seed=prompt)
                wanted = self.reference_logits(ids)
                harness = self.build(columns=query)
                for emitted in range(1, query + 1):
                    row = _prefilled(harness, ids[:prompt])
                    done = prompt
                    while done + query <= len(ids):
                        right, rest = ids[done : done + emitted], ids[done + emitted : done + query]
                        item = Uniform(row, right + [(t + 1) % vocab_size for t in rest], query)
                        what = f"query {query}, {emitted} accepted, position {done}"
                        found = harness.logits(uniform=[item])[:emitted]
                        assert_close(found, wanted[done : done + emitted], SAME, what)
                        accept(item, emitted)
                        done += emitted
                        # A step without drafts starts from the accepted column too.
                        if done < len(ids):
                            found = harness.logits(uniform=[Uniform(row, [ids[done]], 1)])[0]
                            assert_close(found, wanted[done], SAME, f"after {what}")
                            done += 1
                    harness.release(row)

    @since("0.1")
    def test_short_queries_stop_at_their_length(self) -> None:
        """Of a query cut short by missing drafts only the valid tokens count."""
        if not self.can_roll_back():
            return
        harness, lengths = self.build(columns=3), (1, 3, 2)
        known = [self.ids(length, seed=length) for length in (4, 6, 8)]
        rows = [_prefilled(harness, ids) for ids in known]
        queries = [self.ids(3, seed=60 + index) for index in range(3)]
        items = [Uniform(*item) for item in zip(rows, queries, lengths, strict=True)]
        logits = harness.logits(uniform=items, slack=3)
        assert bool(logits.isfinite().all()), "padding of a short query has logits that are not finite"
        following = harness.logits(uniform=[Uniform(row, [7], 1) for row in rows])
        for index, length in enumerate(lengths):
            wanted = self.reference_logits([*known[index], *queries[index][:length], 7])
            found = logits[3 * index : 3 * index + length]
            assert_close(found, wanted[-1 - length : -1], SAME, f"{length} of 3 tokens")
            assert_close(following[index], wanted[-1], SAME, f"the token after {length} of 3")

    @since("0.1")
    def test_captured_residuals_equal_the_reference(self) -> None:
        """Captures come in the order asked, [T, n * H], and are the reference's residuals."""
        layers = (self.arch().dims.num_layers - 2, -1) if self.arch().dims.num_layers > 1 else (-1,)
        ids = self.ids(12)
        harness = self.build(aux_layers=layers)
        row = harness.admit()
        hidden = self.reference_hidden(ids)
        wanted = torch.cat([hidden[layer + 1] for layer in layers], -1)
        found = [harness.step(prefill=[Prefill(row, ids[:7])]).aux]
        found += [harness.step(uniform=[Uniform(row, [token], 1)]).aux for token in ids[7:]]
        assert all(aux is not None for aux in found), "no residual was captured"
        assert_close(torch.cat([aux for aux in found if aux is not None]), wanted, RELATIVE, "captures")
        plain = self.build()
        assert plain.step(prefill=[Prefill(plain.admit(), ids)]).aux is None, "captured without being asked"


def _prefilled(harness: Harness, ids: list[int]) -> Row:
    row = harness.admit()
    harness.step(prefill=[Prefill(row, ids)])
    return row
