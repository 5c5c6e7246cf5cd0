"""What a model architecture tells the core, and the model object it builds.

Does not: read files, allocate caches or sample. Importable without torch.

Shape letters: T query tokens of a step, H hidden size, N logit rows, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from attrs import frozen

from vtcore.interfaces.chat import MessageRules
from vtcore.interfaces.kv_cache_spec import KVCacheSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from vtcore.interfaces.step import LayerCache, StepInputs


@frozen(kw_only=True)
class ParamPart:
    """One component of a parameter, read from one tensor of the checkpoint.

    Args:
        component: Its name inside the parameter ("q", "gate", ...), unique there.
        rows: Extent along dimension 0 after `transform`.
        source: Name in the checkpoint.
        shard_axis: Dimension that tensor parallelism slices, None for replicated.
        transform: Applied to the tensor as read (a squeeze, a sign), before slicing and conversion.
        source_shape: Shape in the checkpoint; None means (rows, *shape[1:]) of the rule. Needed where
            `transform` changes the shape, or where `rows` is less than the source has. Without a transform
            it may have more dimensions than the rule: the leading ones then count as one, of rows.
        source_row: First row of the (transformed) source that belongs to the part; rows
            [source_row, source_row + rows) are taken.
    """

    component: str
    rows: int
    source: str
    shard_axis: int | None = 0
    transform: Callable[[Any], Any] | None = None
    source_shape: tuple[int, ...] | None = None
    source_row: int = 0


@frozen(kw_only=True)
class ParamRule:
    """One parameter of the model: its parts are concatenated along dimension 0, in order.

    Args:
        name: The model's own name, as asked for by `BuildContext.param` and `BuildContext.linear`.
        shape: Final shape; shape[0] is the sum of the parts' rows.
        dtype: "model" (the engine's dtype) or "acc" (float64 for float64, else float32).
        num_groups: For `BuildContext.grouped_linear`: the rows are that many equal blocks, one matrix per
            group (expert), >= 1. None for every other parameter.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[ParamPart, ...]
    dtype: str = "model"
    num_groups: int | None = None


@frozen(kw_only=True)
class ModelDims:
    """The numbers of a model that the core itself needs."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    max_position_embeddings: int


@frozen(kw_only=True)
class ModelCosts:
    """Work of a forward that neither rules nor cache specs tell; for bounds, never for results.

    A FLOP is one multiplication or one addition. What is left at its default is left out of the bound.

    Args:
        groups_per_token: Groups of a rule with `num_groups` that one token chooses, >= 1.
        shared_groups: Groups among them that every token goes to beside its choice.
        pair_flops: FLOPs of all layers for one query token and one token that it sees: scores and sums.
        recurrence_flops: FLOPs of all layers for one token of a prompt in recurrences over the sequence.
    """

    groups_per_token: int = 1
    shared_groups: int = 0
    pair_flops: int = 0
    recurrence_flops: int = 0


@frozen(kw_only=True)
class CacheContext:
    """What a cache spec may depend on: tokens per block and the engine's dtype name."""

    block_size: int
    dtype: str


class Linear(Protocol):
    """A matrix product y = x W^T, built by the core from its rule and the stored scheme."""

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], in x's dtype."""


class GroupedLinear(Protocol):
    """One matrix product per group, y = x W_g^T, built by the core from one rule with `num_groups`."""

    @property
    def num_groups(self) -> int:
        """Number of groups G, >= 1."""

    @property
    def weight_GNK(self) -> Tensor | None:
        """The groups' matrices as one contiguous tensor, for kernels; None where they lie otherwise."""

    def __call__(self, x: Tensor, ends: Tensor) -> Tensor:
        """Multiply each row by its group's matrix.

        Args:
            x: [M, in], rows ordered by group.
            ends: [G] int64 on x's device: group g has rows [ends[g - 1], ends[g]), the first from 0; a group
                may have none. ends[-1] is M.

        Returns:
            [M, out], in x's dtype.
        """


class Parallel(Protocol):
    """The model's place among its ranks; the identity at world size 1."""

    @property
    def rank(self) -> int:
        """0 <= rank < world."""

    @property
    def world(self) -> int:
        """Number of ranks, >= 1."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum over ranks."""

    def gather(self, x: Tensor) -> Tensor:
        """Concatenation over ranks along the last dimension."""


@frozen(kw_only=True)
class BuildContext:
    """Everything `ModelArch.build` may use and must not import.

    Args:
        dtype, acc_dtype: torch dtypes of activations and of accumulation.
        device: torch device string.
        ops: Op name -> callable, resolved once by device and override.
        linear: Rule name -> `Linear`.
        grouped_linear: Name of a rule with `num_groups` -> `GroupedLinear`.
        param: Rule name -> tensor, owned by the core for the engine's life.
        aux_layers: Layers whose output residual is captured on every forward (0-based; -1, the embedding).
        max_position: Positions served, in tokens.
    """

    dtype: torch.dtype
    acc_dtype: torch.dtype
    device: str
    ops: Mapping[str, Callable[..., Any]]
    linear: Callable[[str], Linear]
    grouped_linear: Callable[[str], GroupedLinear]
    param: Callable[[str], Tensor]
    parallel: Parallel
    aux_layers: tuple[int, ...] = ()
    max_position: int


@frozen
class ForwardOutput:
    """Result of one forward.

    Args:
        hidden: [T, H], after the final norm: the input of the head.
        aux: [T, n * H], residuals after the captured layers, in the order asked; None without any.
    """

    hidden: Tensor
    aux: Tensor | None = None


class Model(Protocol):
    """A built model. All tensors live on the context's device, activations in its dtype."""

    def bind(self, caches: Mapping[str, LayerCache]) -> None:
        """Take the layers' cache tensors, once, before the first forward."""

    def forward(self, step: StepInputs) -> ForwardOutput:
        """Run the step's query tokens; writes KV and state as the step says."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, H] -> [N, V]."""

    def embed(self, ids: Tensor) -> Tensor:
        """[T] int64 -> [T, H]."""


class ModelArch(ABC):
    """One checkpoint's architecture as data, made from its config.

    Args:
        hf_config: The parsed config.json, outer form.

    Raises:
        CheckpointError: The config lacks a field, or has a value the architecture does not serve.

    Attributes:
        message_rules: How messages are changed before the chat template sees them; default: not at all.
    """

    message_rules: ClassVar[MessageRules] = MessageRules()

    @abstractmethod
    def __init__(self, hf_config: Mapping[str, Any]) -> None: ...

    @property
    @abstractmethod
    def dims(self) -> ModelDims:
        """The numbers the core needs."""

    @abstractmethod
    def default_token_budget(self, max_num_seqs: int) -> int:
        """max_num_batched_tokens when the user gives none, before the core's floor and ceiling."""

    @abstractmethod
    def cache_specs(self, ctx: CacheContext) -> tuple[KVCacheSpec, ...]:
        """Groups of equal layers; together they name every layer with a cache exactly once."""

    @abstractmethod
    def param_rules(self, names: Collection[str]) -> tuple[ParamRule, ...]:
        """Rules for a checkpoint holding tensors `names`, in the `hf` naming scheme.

        Prefixes and the tied head are decided here, by looking at the names. Without any names: the rules
        of the released form, the head tied as the config says.
        """

    @abstractmethod
    def is_skipped(self, name: str) -> bool:
        """Whether a tensor of the checkpoint is known and deliberately unused."""

    @abstractmethod
    def ops(self) -> Mapping[str, Mapping[str, str]]:
        """The arch's own ops: op name -> {device type or "naive": dotted path}.

        An op that chooses groups may have forms for benchmarks too, see `vtcore.benchmark.groups`.
        """

    @abstractmethod
    def build(self, ctx: BuildContext) -> Model:
        """Construct the model over parameters that the core has loaded."""

    def random_init(self, rule: ParamRule) -> Mapping[str, float | str]:
        """How `make-checkpoint` and dummy loading draw a parameter: {"kind": ..., "std": ...}.

        Kinds: "normal" (std, mean 0), "zeros", "ones", "log_uniform" (the natural logarithm of a uniform
        draw from [low, high], 0 < low < high). The head, or a tied embedding, is drawn so that logits have
        a standard deviation of about 6: std = 6 / sqrt(H) behind a norm of unit rms.
        """
        return {"kind": "normal", "std": 0.02}

    def costs(self) -> ModelCosts:
        """What benchmarks need for a bound, beside the rules and the cache specs."""
        return ModelCosts()

    @classmethod
    def checkpoint_config(cls, size: str, vocab_size: int) -> Mapping[str, Any]:
        """config.json, outer form, of a random-weight checkpoint for tests, demos and benchmarks.

        Args:
            size: "tiny" (about 1M parameters), "small" (about 30M) or "bench" (about 120M), as far as the
                architecture offers them.
            vocab_size: Rows of the embedding, already padded. Token ids (eos and the like) are left out;
                the core adds them.

        Raises:
            ValueError: The architecture has no such size; the message names those it has.
        """
        raise ValueError(f"{cls.__name__} offers no random-weight checkpoint (asked for size {size!r})")

    @classmethod
    def published_config(cls, size: str) -> Mapping[str, Any]:
        """config.json, outer form, of a released model: its shapes, for benchmarks with dummy weights.

        Args:
            size: As the release calls it, in small letters: "9b".

        Raises:
            ValueError: The architecture knows no such release; the message names those it knows.
        """
        raise ValueError(f"{cls.__name__} knows no released sizes (asked for {size!r})")

    def validate_layers(self, layers: Sequence[int]) -> None:
        """Check aux layer numbers; -1 is the embedding output.

        Raises:
            ValueError: A number is outside -1..num_layers-1.
        """
        for layer in layers:
            if not -1 <= layer < self.dims.num_layers:
                raise ValueError(
                    f"aux layer {layer} is outside -1..{self.dims.num_layers - 1} "
                    f"(-1 is the embedding output)"
                )
