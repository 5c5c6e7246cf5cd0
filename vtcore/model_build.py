"""Builds the arch's model over its parameters, and runners over the model: for a device, or for torch's meta.

Does not: load weights or allocate caches; loader.py says when each happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import frozen

from vtcore.checked_arch import naming_arch
from vtcore.checkpoint.parameters import LoadedParameters
from vtcore.errors import ConfigError
from vtcore.execution.checked_model import CheckedModel
from vtcore.execution.model_runner import ModelRunner
from vtcore.interfaces.model_arch import BuildContext, Model
from vtcore.internals import Internals
from vtcore.kv_cache.allocator import Caches
from vtcore.kv_cache.planner import MemoryPlan
from vtcore.layers.dtypes import DTYPES, acc_dtype
from vtcore.layers.linear import SingleRank, build_grouped_linear, build_linear
from vtcore.ops.dispatch import resolve_ops
from vtcore.planning import PlannedCore


@frozen(eq=False)
class BuiltModel:
    """A model over its weights, without caches.

    Args:
        model: The arch's own. ops: Op name -> function.
    """

    planned: PlannedCore
    internals: Internals
    model: Model
    ops: Mapping[str, Callable[..., Any]]
    device: str

    def runner(self, plan: MemoryPlan, caches: Caches) -> ModelRunner:
        """Bind the model to caches and make a runner over both; the binding before no longer holds."""
        drafter, dims = self.internals.drafter, self.planned.arch.dims
        checked = CheckedModel(
            self.model,
            str(self.planned.registered),
            hidden_size=dims.hidden_size,
            vocab_size=dims.vocab_size,
            num_aux=0 if drafter is None else len(drafter.aux_layers),
            dtype=DTYPES[self.planned.config.model.dtype],
            device=self.device,
        )
        checked.bind(caches.layers)
        return ModelRunner(
            checked,
            plan,
            caches,
            ops=self.ops,
            vocab_size=dims.vocab_size,
            max_num_seqs=self.planned.config.scheduler.max_num_seqs,
            k_max=self.internals.k_max,
            drafter=drafter,
            device=self.device,
        )


def build_model(
    planned: PlannedCore, parameters: LoadedParameters, device: str, internals: Internals
) -> BuiltModel:
    """Build the model that was planned.

    Args:
        device: Of the parameters. On "meta" the model is the one a GPU would run, without any memory.

    Raises:
        PluginError: The arch fails.
        ConfigError: The drafter reads layers that do not exist.
    """
    arch, config = planned.arch, planned.config
    aux_layers = () if internals.drafter is None else internals.drafter.aux_layers
    try:
        arch.validate_layers(aux_layers)
    except ValueError as error:
        raise ConfigError(f"the drafter's {error}") from error
    dtype = DTYPES[config.model.dtype]
    kind = torch.device(device).type
    with naming_arch(str(planned.registered)):
        ops = resolve_ops(
            "cuda" if kind == "meta" else kind,
            config.model.op_overrides,
            arch.ops(),
            batch_invariant=config.model.batch_invariant,
        )
        model = arch.build(
            BuildContext(
                dtype=dtype,
                acc_dtype=acc_dtype(dtype),
                device=device,
                ops=ops,
                linear=lambda name: build_linear(*parameters.hand_over(name), ops["linear"]),
                grouped_linear=lambda name: build_grouped_linear(
                    *parameters.hand_over_groups(name), ops["linear"]
                ),
                param=parameters.param,
                parallel=SingleRank(),
                aux_layers=aux_layers,
                max_position=planned.plan.max_model_len,
            )
        )
        parameters.check_all_used()
    return BuiltModel(planned, internals, model, ops, device)
