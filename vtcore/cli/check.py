"""`vtcore check`: what a model and its options resolve to, and the memory they would take.

Does not: read weights or touch a device; it is steps 1 to 7 of the loader, so its figures are estimates.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from vtcore.cli.engine_flags import add_engine_flags, given_from_args, notes_as_typed
from vtcore.cli.own_stdout import others_print_to_stderr

if TYPE_CHECKING:
    from vtcore.engine.sampling_defaults import SamplingDefaults
    from vtcore.errors import MemoryPlanError
    from vtcore.planning import PlannedCore

_FEATURES: Mapping[str, tuple[str, bool]] = {
    "prefix caching": ("cache.enable_prefix_caching", False),
    "asynchronous scheduling": ("scheduler.async_scheduling", False),
    "jump-forward": ("scheduler.enable_jump_forward", False),
    "captured graphs": ("model.enforce_eager", True),
    "text": ("frontend.skip_tokenizer_init", True),
}
"""Feature -> the setting that says whether it is off, and the value that says so."""


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "check", help="show what a model and its options resolve to, without loading weights"
    )
    parser.add_argument(
        "model", metavar="MODEL", help="directory, checkpoint source or Hub id; config.json is enough"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Plan, print, and raise what would stop the start."""
    given = given_from_args(args)

    from vtcore.engine.frontend import check_frontend, sampling_defaults_of
    from vtcore.loader import plan_core

    with others_print_to_stderr():
        planned = plan_core(
            given.options,
            sources=given.sources,
            environment=given.environment,
            on_config=partial(check_frontend, only_configs=True),
        )
        defaults = sampling_defaults_of(planned.config, planned.checkpoint)
        memory_problem = _memory_problem(planned)
        report = build_report(planned, defaults, notes_as_typed(given), memory_problem)
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    if memory_problem is not None:
        raise memory_problem
    return 0


def _memory_problem(planned: PlannedCore) -> MemoryPlanError | None:
    """Why this machine could not hold it."""
    from vtcore.errors import MemoryPlanError
    from vtcore.kv_cache.planner import plan_memory

    try:
        plan_memory(planned.specs, planned.limits)
    except MemoryPlanError as error:
        return error
    return None


def build_report(
    planned: PlannedCore,
    defaults: SamplingDefaults,
    notes: Sequence[str] = (),
    memory_problem: MemoryPlanError | None = None,
) -> dict[str, Any]:
    """Everything that `check` shows, as JSON types.

    Args:
        planned: Steps 1 to 7 of the loader.
        defaults: Sampling parameters of requests that bring none.
        notes: Of options that are always so.
        memory_problem: Why this machine could not hold it.

    Returns:
        "model": what is served, and by whom. "config": path -> {"value", "origin"}. "prefix_caching": whether
        it is on, and what it takes or would take. "memory": bytes by part, an estimate. "sampling_defaults":
        parameter -> {"value", "origin"}. "off": feature -> why. "notes": sentences. "warnings": what the
        engine would log at its start. "problems": plugins that do not work, and memory that does not suffice.
    """
    from vtcore.scheduling.policy_guard import prefix_caching_warning

    config, plan = planned.config, planned.plan
    return {
        "model": {
            "model": config.model.model,
            "directory": None if planned.checkpoint is None else str(planned.checkpoint.directory),
            "architectures": list(planned.hf_config.get("architectures") or ()),
            "arch": str(planned.registered),
            "num_parameters": sum(
                prod(rule.shape) for rule in planned.arch.param_rules(planned.stored.names().keys())
            ),
        },
        "config": {
            path: {"value": _plain(value), "origin": str(config.origins[path])}
            for path, value in config.values().items()
        },
        "prefix_caching": _prefix_caching(planned),
        "memory": {
            "is_estimate": True,
            "weight_bytes": plan.weight_bytes,
            "pools": [
                {
                    "lifetime": str(pool.lifetime),
                    "kinds": sorted({spec.kind for spec in pool.specs}),
                    "num_layers": sum(len(spec.layers) for spec in pool.specs),
                    "num_units": pool.num_units,
                    "unit_bytes": pool.unit_bytes,
                    "num_bytes": pool.num_bytes,
                    "num_checkpoints": pool.num_checkpoints,
                }
                for pool in plan.pools
            ],
            "table_bytes": plan.table_bytes,
            "total_bytes": plan.total_bytes,
            "available_bytes": planned.limits.available_bytes,
            "device": config.model.device,
            "max_model_len": plan.max_model_len,
            "num_blocks": plan.num_blocks,
        },
        "sampling_defaults": {
            name: {"value": _plain(value), "origin": origin}
            for name, (value, origin) in defaults.rows().items()
        },
        "off": _features_off(planned),
        "notes": [*notes, *_interval_notes(planned), *_memory_notes(planned)],
        "warnings": [
            warning
            for warning in (prefix_caching_warning(planned.policy, config.cache.enable_prefix_caching),)
            if warning
        ],
        "problems": [
            *(problem.message for problem in planned.registry.problems),
            *([] if memory_problem is None else [str(memory_problem)]),
        ],
    }


def _prefix_caching(planned: PlannedCore) -> dict[str, Any]:
    """Whether it is on, and for archs with recurrent state what the checkpoints take or would take.

    Returns:
        "is_on"; with recurrent state also "num_state_checkpoints", "state_checkpoint_bytes", of all of them,
        "grid", tokens between the positions at which a hit may end, and "state_checkpoint_interval", tokens
        between regular checkpoints as the grid lets them be.
    """
    from vtcore.config.rules import default_state_checkpoints
    from vtcore.kv_cache.state_checkpoints import on_grid

    config, plan = planned.config, planned.plan
    cache = config.cache
    shown: dict[str, Any] = {"is_on": cache.enable_prefix_caching}
    if not any(pool.is_slot for pool in plan.pools):
        return shown
    num = cache.num_state_checkpoints
    if not cache.enable_prefix_caching:
        num = default_state_checkpoints(config.scheduler.max_num_seqs, config.model.device)
    each = sum(pool.unit_bytes for pool in plan.pools if pool.is_slot)
    return {
        **shown,
        "num_state_checkpoints": num,
        "state_checkpoint_bytes": num * each,
        "grid": plan.grid,
        "state_checkpoint_interval": on_grid(cache.state_checkpoint_interval, plan.grid),
    }


def _interval_notes(planned: PlannedCore) -> Iterator[str]:
    """What becomes of an interval that the user gave."""
    caching, config = _prefix_caching(planned), planned.config
    if config.origins["cache.state_checkpoint_interval"].source == "default" or "grid" not in caching:
        return
    given, interval = config.cache.state_checkpoint_interval, caching["state_checkpoint_interval"]
    if interval != given:
        yield f"state_checkpoint_interval {given} is rounded up to the grid of {caching['grid']}: {interval}"
    if interval >= planned.plan.max_model_len:
        yield (
            f"state_checkpoint_interval {given} is not reached within max_model_len "
            f"{planned.plan.max_model_len}: no prompt has regular state checkpoints"
        )


def _memory_notes(planned: PlannedCore) -> Iterator[str]:
    """What the figures rest on where the device is not here."""
    config, limits = planned.config, planned.limits
    if not config.model.is_gpu or limits.available_bytes is not None:
        return
    planned_for = ""
    if config.cache.num_blocks is None and config.cache.kv_cache_memory_bytes is None:
        planned_for = (
            f"; the engine will fill gpu_memory_utilization {config.cache.gpu_memory_utilization} of it, "
            f"what is shown holds one request of {planned.plan.max_model_len} tokens"
        )
    yield f"the memory of device {config.model.device} is unknown, since it is not seen here{planned_for}"


def _features_off(planned: PlannedCore) -> dict[str, str]:
    config = planned.config
    values = config.values()
    off = {
        feature: f"{path} is {json.dumps(values[path])} ({config.origins[path]})"
        for feature, (path, is_off) in _FEATURES.items()
        if values[path] == is_off
    }
    caching = _prefix_caching(planned)
    if not caching["is_on"]:
        off["prefix caching"] += f"; {_flag_that_turns_it_on(caching)}"
    return off


def _flag_that_turns_it_on(caching: Mapping[str, Any]) -> str:
    sentence = "--enable-prefix-caching turns it on"
    if "grid" not in caching:
        return sentence
    num, size = caching["num_state_checkpoints"], _size(caching["state_checkpoint_bytes"])
    return f"{sentence}, with {num} state checkpoints of {size} together"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _print(report: dict[str, Any]) -> None:
    model, memory = report["model"], report["memory"]
    print(f"model {model['model']}")
    print(f"  {', '.join(model['architectures']) or 'no architectures'}, served by arch {model['arch']}")
    print(f"  {model['num_parameters']:,} parameters")
    _print_origins("config", report["config"])
    print("memory (an estimate)")
    _print_table(_memory_rows(memory, report["prefix_caching"]))
    defaults = report["sampling_defaults"]
    chosen = {name: row for name, row in defaults.items() if row["origin"] != "default"}
    _print_origins("sampling defaults (of requests that bring no parameters)", chosen)
    print(f"  the other {len(defaults) - len(chosen)} are those of SamplingParams")
    print("off")
    for feature, why in report["off"].items():
        print(f"  {feature}: {why}")
    for note in report["notes"]:
        print(f"note: {note}")
    for warning in report["warnings"]:
        print(f"warning: {warning}")
    for problem in report["problems"]:
        print(f"problem: {problem}")


def _print_origins(title: str, rows: dict[str, Any]) -> None:
    print(title)
    shown = {name: json.dumps(row["value"]) for name, row in rows.items()}
    name_width = max(map(len, rows), default=0)
    value_width = min(max(map(len, shown.values()), default=0), 32)
    for name, row in rows.items():
        print(f"  {name:{name_width}}  {shown[name]:{value_width}}  {row['origin']}".rstrip())


def _memory_rows(memory: Mapping[str, Any], caching: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """(what, bytes, a word on it)."""
    yield "weights", memory["weight_bytes"], ""
    for pool in memory["pools"]:
        what = f"{pool['num_units']} x {pool['unit_bytes']} bytes, {pool['num_layers']} layers"
        yield f"pool {', '.join(pool['kinds'])}", pool["num_bytes"], what
    if caching["is_on"] and "grid" in caching:
        what = (
            f"of the pool above: {caching['num_state_checkpoints']}, on a grid of {caching['grid']} tokens, "
            f"one every {caching['state_checkpoint_interval']} in a long prompt"
        )
        yield "  state checkpoints", caching["state_checkpoint_bytes"], what
    yield "tables", memory["table_bytes"], ""
    available = memory["available_bytes"]
    what = "" if available is None else f"of {_size(available)} available"
    if available is None and memory["device"] != "cpu":
        what = f"of what {memory['device']} has, which is unknown here"
    yield "total", memory["total_bytes"], what


def _print_table(rows: Iterable[tuple[str, int, str]]) -> None:
    """Sizes below one another, however long the longest name is."""
    shown = [(name, _size(num_bytes), note) for name, num_bytes, note in rows]
    name_width, size_width = (max(len(row[column]) for row in shown) for column in (0, 1))
    for name, size, note in shown:
        print(f"  {name:<{name_width}}  {size:>{size_width}}  {note}".rstrip())


def _size(num_bytes: int) -> str:
    unit = "B"
    if num_bytes >= 2**100:
        # Of a config.json that asks for more than any machine, or a float, holds.
        return f"{num_bytes // 2**30} GiB"
    number = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            break
        number /= 1024
    return f"{number:.1f} {unit}" if unit != "B" else f"{num_bytes} B"
