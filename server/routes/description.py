"""What the protocol says of a function: metadata, Triton's config, Triton's statistics.

Pure: from functions and counts to JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from server.catalog.function_spec import outputs_of
from server.catalog.functions import INPUT_NAMES, Function
from server.observability.stats import Durations, FunctionStats
from server.routes.codec import OWN_OUTPUTS

__all__ = ["EXTENSIONS", "PLATFORM", "config_of", "metadata_of", "statistics_of"]

PLATFORM = "ml_udf"
EXTENSIONS = (
    "ml_udf",
    "binary_tensor_data",
    "model_repository",
    "model_configuration",
    "statistics",
)
_TRITON_TYPES: Mapping[str, str] = {
    "BYTES": "TYPE_STRING",
    "FP32": "TYPE_FP32",
    "FP64": "TYPE_FP64",
    "INT64": "TYPE_INT64",
}


def metadata_of(function: Function, versions: Sequence[Function], members: Sequence[str]) -> dict[str, Any]:
    """Model metadata. Its one input is the function's own; the parameters name the others it takes.

    members: what its models are called for whoever asks.
    """
    return {
        "name": function.name,
        "versions": [str(served.version) for served in versions],
        "platform": PLATFORM,
        "inputs": [_input(function)],
        "outputs": outputs_of(function),
        "parameters": {
            "task": function.task.name,
            "form": function.form,
            "classes": list(function.classes),
            "columns": [{"name": name, "kind": kind} for name, kind in function.columns],
            "inputs": {INPUT_NAMES[form]: form for form in function.forms},
            "outputs_on_request": [
                *(spec.name for spec in function.task.columns if spec.on_request),
                *OWN_OUTPUTS,
            ],
            "members": list(members),
            "by_wish": function.wants is not None,
        },
    }


def config_of(function: Function) -> dict[str, Any]:
    """Triton's model configuration, as far as its clients read it; dimensions are those of one row."""
    source = _input(function)
    return {
        "name": function.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": {"latest": {"num_versions": 2}},
        "max_batch_size": function.max_batch,
        "input": [
            {
                "name": source["name"],
                "data_type": _TRITON_TYPES[source["datatype"]],
                "format": "FORMAT_NONE",
                "dims": source["shape"][1:],
            }
        ],
        "output": [
            {
                "name": spec.name,
                "data_type": _TRITON_TYPES[spec.datatype],
                "dims": list(spec.shape(function.sizes)),
                "label_filename": "",
            }
            for spec in function.task.columns
        ],
        "dynamic_batching": {
            "preferred_batch_size": list(function.batch_sizes),
            "max_queue_delay_microseconds": int(function.slo_ms * 1000),
        },
        "instance_group": [],
        "parameters": {"policy": {"string_value": function.policy}},
    }


def statistics_of(functions: Iterable[tuple[Function, FunctionStats]]) -> dict[str, Any]:
    """Triton's statistics extension."""
    return {"model_stats": [_statistics(function, stats) for function, stats in functions]}


def _statistics(function: Function, stats: FunctionStats) -> dict[str, Any]:
    nothing = _duration(Durations())
    return {
        "name": function.name,
        "version": str(function.version),
        "last_inference": stats.last_ms,
        "inference_count": stats.rows,
        "execution_count": stats.batches,
        "inference_stats": {
            "success": _duration(stats.success),
            "fail": _duration(stats.fail),
            "queue": _duration(stats.queue),
            "compute_input": _duration(stats.decode),
            "compute_infer": _duration(stats.forward),
            "compute_output": _duration(stats.combine),
            "cache_hit": _duration(Durations(stats.cache.hit_calls, stats.cache.hit_s)),
            "cache_miss": _duration(Durations(stats.cache.miss_calls, stats.cache.miss_s)),
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": _duration(by_size.decode),
                "compute_infer": _duration(by_size.forward),
                "compute_output": nothing,
            }
            for size, by_size in sorted(stats.by_size.items())
        ],
    }


def _duration(durations: Durations) -> dict[str, int]:
    return {"count": durations.count, "ns": int(durations.seconds * 1e9)}


def _input(function: Function) -> dict[str, Any]:
    form = function.form
    return {
        "name": function.input_name,
        "datatype": "FP32" if form == "tensor" else "BYTES",
        "shape": [-1, *function.row_shape(form)],
    }
