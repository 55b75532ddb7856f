"""An ONNX file as people have it → the manifest of a model: what the graph says, and guesses that are shown.

A graph says its inputs and outputs, their types and shapes, and how its last layers end. It does not say what
its classes are called, nor how pictures become its pixels: that is asked for, or guessed and said so. A batch
or a size that is fixed in the graph is made free where the graph still answers each row as it did alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.onnx_file import OnnxRefused, check_onnx
from gpu_worker.model_files.preprocess import preprocess_from
from gpu_worker.model_files.regular import open_regular
from gpu_worker.networks.extras import first_line
from gpu_worker.networks.file_input import FileInput
from gpu_worker.networks.file_source import GRAPH_FILE, file_rules
from gpu_worker.networks.recognised import Recognised, as_wished
from gpu_worker.networks.transformers_source import recognise_token_graph
from gpu_worker.tasks import FILE_CLASSIFICATION, task_named

__all__ = ["recognise_onnx"]

_SIDE = 224  # of pictures, where neither the graph nor its owner says
_THROUGH = frozenset(
    ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast", "ZipMap", "Transpose")
)
_ENDS = {"Softmax": "none", "Sigmoid": "none", "LogSoftmax": "softmax", "HardSigmoid": "none"}
_PROBABILITIES = ("probabilities", "output_probability")  # as scikit-learn's converter calls them
_MOST_SAME = 1e-3  # of a row alone and among others
_TRIED_ROWS = 3
_TRIED_TABLE_ROWS = 64
_TRIED_FILE_BYTES = 1 << 17  # longer than both ends of any
_MOST_NOISE = 1 << 28  # numbers of the pictures that it is tried with
_MOST_NAMES = 1 << 16  # of columns or classes that nobody has named
_PICTURE_TYPES = ("tensor(float)", "tensor(float16)", "tensor(uint8)", "tensor(double)")


@dataclass(slots=True)
class _Found:
    """What is known so far."""

    path: Path
    model: Any  # onnx.ModelProto
    wishes: Mapping[str, Any]
    guesses: list[str] = field(default_factory=list)
    is_changed: bool = False  # the file is stored otherwise than it came


def recognise_onnx(path: Path, wishes: Mapping[str, Any]) -> Recognised | None:
    """The model in an ONNX file, or in a folder that says how it reads files or texts; None for any other.

    wishes: fields of the manifest that are said. Raises `ModelUnusable` with what is wrong with it, or still
    has to be said.
    """
    rules = file_rules(path)
    if rules is not None:
        path, wishes = path / GRAPH_FILE, {**rules, **wishes, "input": as_wished(rules["input"], wishes)}
    if path.is_dir():
        return recognise_token_graph(path, wishes)
    if not path.is_file() or path.suffix.lower() != ".onnx":
        return None
    try:
        with open_regular(path.resolve()) as file:
            check_onnx(file)
    except OnnxRefused as exc:
        raise ModelUnusable(f"{path} cannot be served: {exc}") from exc
    except OSError as exc:
        raise ModelUnusable(f"{path} cannot be read: {exc.strerror}") from exc
    try:
        import onnx
    except ModuleNotFoundError as exc:
        raise ModelUnusable("importing an ONNX file needs onnx; pip install 'ml_udf[import]'") from exc
    found = _Found(path, onnx.load(path), wishes)
    inputs = _inputs(found.model)
    if not inputs:
        raise ModelUnusable(f"{path} has no input")
    how = (wishes.get("input") or {}).get("preprocess") or {}
    if how.get("first_bytes") or how.get("last_bytes") or wishes.get("task") == FILE_CLASSIFICATION.name:
        manifest = _of_files(found, inputs, how)
    elif len(inputs) == 1 and len(_shape(inputs[0])) == 4:
        manifest = _of_pictures(found, inputs[0])
    else:
        manifest = _of_rows(found, inputs)
    content: Path | bytes = found.model.SerializeToString() if found.is_changed else path
    return Recognised(manifest, {"model.onnx": (content, "weights")}, found.guesses)


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────────────


def _of_pictures(found: _Found, given: Any) -> dict[str, Any]:  # noqa: ANN401  # onnx.ValueInfoProto
    wishes = found.wishes
    said_input = dict(wishes.get("input") or {})
    shape = _shape(given)
    axis = next((axis for axis in (1, 3) if shape[axis] in (1, 3)), 1)
    sides = shape[2:] if axis == 1 else shape[1:3]
    height, width = _size(found, sides, said_input)
    _free(found, given, axis, (height, width))
    said_outputs = dict(wishes.get("outputs") or {})
    answers = _noise_answers(found, (height, width), axis)
    shapes = {name: (1, *np.shape(answer)[1:]) for name, answer in answers.items()}
    task = str(wishes.get("task") or _task(found, shapes, said_outputs))
    manifest: dict[str, Any] = {"runtime": "onnx", "task": task}
    reads = task_named(task).reads
    outputs = _outputs(found, reads, shapes, said_outputs, answers)
    classes = list(wishes.get("classes") or ())
    if reads in ("scores", "boxes") and not classes:
        classes = _classes(found, reads, shapes, outputs)
    if classes:
        manifest["classes"] = classes
    if reads == "features" or outputs.get("features"):
        name = outputs.pop("features", None) or next(iter(shapes))
        manifest["features"] = {"output": name, "width": int(np.prod(shapes[name][1:]))}
    if reads == "boxes" and "layout" not in outputs:
        outputs |= _layout(found, shapes, outputs, len(classes))
    manifest["outputs"] = outputs
    is_raw = given.type.tensor_type.elem_type == 2  # uint8: the graph does the arithmetic
    manifest["input"] = _picture_input(found, said_input, (height, width), shape[axis], is_raw=is_raw)
    return manifest


def _size(found: _Found, sides: Sequence[int | None], said: Mapping[str, Any]) -> tuple[int, int]:
    asked = (said.get("height"), said.get("width"))
    if all(asked):
        return int(asked[0] or 0), int(asked[1] or 0)
    if all(sides):
        return int(sides[0] or 0), int(sides[1] or 0)
    found.guesses.append(
        f"input: {_SIDE}×{_SIDE} pixels, since the graph takes any size; --size says another"
    )
    return _SIDE, _SIDE


def _free(found: _Found, given: Any, axis: int, size: tuple[int, int]) -> None:  # noqa: ANN401  # a ValueInfoProto
    """Makes batch and size of the graph's input free, where it is right so; else refuses a size, and keeps
    the batch: it then runs so many rows a pass."""
    shape = _shape(given)
    sides = shape[2:] if axis == 1 else shape[1:3]
    has_other_size = any(have and have != want for have, want in zip(sides, size, strict=True))
    if not shape[0] and not has_other_size:
        return
    model = type(found.model)()
    model.CopyFrom(found.model)
    changed = next(each for each in model.graph.input if each.name == given.name)
    places = (2, 3) if axis == 1 else (1, 2)
    dims = changed.type.tensor_type.shape.dim
    dims[0].dim_param = "rows"
    if has_other_size:
        for place, side in zip(places, ("height", "width"), strict=True):
            dims[place].dim_param = side
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    channels = int(shape[axis] or 3)
    picture = (channels, *size) if axis == 1 else (*size, channels)
    reason = _answers_each_alone(model, lambda given: _noise(given.type, (_TRIED_ROWS, *picture)), "picture")
    if not reason:
        found.model, found.is_changed = model, True
        found.guesses.append(
            f"the graph declares {shape}, and answers any number of pictures of {size[0]}×{size[1]}: "
            "so it is stored"
        )
    elif has_other_size:
        raise ModelUnusable(
            f"{found.path} takes pictures of {sides[0]}×{sides[1]} and none of {size[0]}×{size[1]}: {reason}"
        )
    else:
        found.guesses.append(f"the graph takes {shape[0]} pictures a pass and no other number: so it is run")


def _answers_each_alone(model: Any, noise: Callable[[Any], Any], row: str) -> str:  # noqa: ANN401  # a ModelProto
    """ "" where three rows together are answered as each of them alone; else why not.

    noise: three rows for an input of a session. row: what one is called.
    """
    from gpu_worker.networks.onnx_network import first_passes

    session = _session(model)
    feed = {str(given.name): noise(given) for given in session.get_inputs()}
    each_alone = [{name: rows[at : at + 1] for name, rows in feed.items()} for at in range(_TRIED_ROWS)]
    try:
        with first_passes("the graph") as options:
            together = [_values(answer) for answer in session.run(None, feed, options)]
            alone = [[*map(_values, session.run(None, one, options))] for one in each_alone]
    except ModelUnusable as exc:
        return first_line(exc)
    for place, whole in enumerate(together):
        parts = [each[place] for each in alone]
        if any(np.ndim(part) < 1 or len(part) != 1 for part in parts) or len(whole) != _TRIED_ROWS:
            return f"output {place} does not have a line for each {row}"
        if not _same(np.concatenate(parts), whole):
            return f"{row}s change each other's answers"
    return ""


def _values(answer: Any) -> Any:  # noqa: ANN401  # an output → an array
    """Of ZipMap, which answers dictionaries, their values."""
    return np.array([[*row.values()] for row in answer]) if isinstance(answer, list) else answer


def _same(some: Any, others: Any) -> bool:  # noqa: ANN401  # arrays
    if np.asarray(some).dtype.kind in "OUS":
        return bool(np.array_equal(some, others))
    return bool(np.allclose(some, others, atol=_MOST_SAME, rtol=_MOST_SAME, equal_nan=True))


def _noise_answers(found: _Found, size: tuple[int, int], axis: int) -> dict[str, Any]:
    """Name → each output, as it comes out, for a picture of noise or as many as the graph takes."""
    session = _session(found.model)
    given = session.get_inputs()[0]
    rows = given.shape[0] if isinstance(given.shape[0], int) else 1
    channels = given.shape[axis] if isinstance(given.shape[axis], int) else 3
    shape = (channels, *size) if axis == 1 else (*size, channels)
    feed = {str(given.name): _noise(given.type, (rows, *shape))}
    return _answered(found, feed, f"shown a picture of {size[0]}×{size[1]}")


def _task(found: _Found, shapes: Mapping[str, Sequence[int]], said: Mapping[str, Any]) -> str:
    from gpu_worker.networks.box_layouts import guessed_layout

    if said.get("layout") or said.get("boxes"):
        return "object-detection"
    if said.get("values"):
        return "image-regression"
    if said.get("features") and not said.get("scores"):
        return "image-embedding"
    if guessed_layout([*shapes.values()], 1) in ("centerface", "text_map", "separate", "detr") or any(
        len(shape) == 3 for shape in shapes.values()
    ):
        task = "object-detection"
    else:
        task = "image-classification"
    found.guesses.append(f"task: {task}, by the shapes of its outputs; --task says another")
    return task


def _outputs(
    found: _Found,
    reads: str,
    shapes: Mapping[str, Sequence[int]],
    said: dict[str, Any],
    answers: Mapping[str, Any],
) -> dict[str, Any]:
    """Which output gives what is read, and what makes probabilities of it; answers: to noise."""
    outputs = dict(said)
    named = [outputs.get(field) for field in ("scores", "features", "values")]
    for name in filter(None, [*named, *(outputs.get("boxes") or ())]):
        if name not in shapes:
            raise ModelUnusable(f"{found.path} has no output {name!r}; there are {_told(shapes)}")
    names = [name for name in shapes if name not in (outputs.get("features"),)]
    if reads in ("scores", "values") and not outputs.get(reads):
        fitting = [name for name in names if _numbers(shapes[name]) > 0]
        wanted = len(found.wishes.get("classes") or ())
        if wanted:
            fitting = [name for name in fitting if _numbers(shapes[name]) in (wanted, 1)] or fitting
        if not fitting:
            raise ModelUnusable(f"{found.path} has no output of {reads}: {_told(shapes)}")
        if len(fitting) > 1:
            found.guesses.append(f"outputs.{reads}: {fitting[0]}, of {_told(shapes)}; --output {reads}=NAME")
        outputs[reads] = fitting[0]
    if reads == "scores" and not outputs.get("activation"):
        outputs["activation"] = _guessed_activation(found, outputs["scores"], answers[outputs["scores"]])
    return outputs


def _guessed_activation(found: _Found, name: str, answer: Any) -> str:  # noqa: ANN401  # to noise, or None
    """What makes probabilities of an output; one number a row is the second class's, before its sigmoid."""
    end = _end_of(found.model, name)
    reason = f"{name} comes of {end or 'an input'}"
    activation = _ENDS.get(end)
    if activation is None and answer is not None:
        if _are_probabilities(answer):
            activation, reason = "none", f"what {name} says of noise is positive and has the sum 1"
        elif _numbers(np.shape(answer)) == 1:
            activation, reason = "sigmoid", f"{name} is one number, and comes of {end or 'an input'}"
    activation = activation or _activation(found)
    found.guesses.append(f"outputs.activation: {activation}, since {reason}")
    return activation


def _are_probabilities(answer: Any) -> bool:  # noqa: ANN401  # an array
    """Whether each row has the sum 1, as after a softmax that the exporter took apart."""
    lines = np.asarray(answer, np.float64).reshape(len(answer), -1)
    return lines.shape[1] > 1 and bool((lines >= 0).all()) and np.allclose(lines.sum(1), 1, atol=_MOST_SAME)


def _activation(found: _Found) -> str:
    task = task_named(str(found.wishes.get("task") or "image-classification"))
    return str(getattr(task, "activation", "softmax"))


def _classes(
    found: _Found, reads: str, shapes: Mapping[str, Sequence[int]], outputs: Mapping[str, Any]
) -> list[str]:
    """Those that its metadata name (as Ultralytics writes them), else numbers."""
    for entry in found.model.metadata_props:
        if entry.key in ("names", "classes", "labels"):
            named = _named(entry.value)
            if named:
                found.guesses.append(f"classes: {len(named)}, by the file's metadata {entry.key!r}")
                return named
    if reads == "boxes":
        found.guesses.append("classes: one, 'object'; --classes FILE names those that there are")
        return ["object"]
    count = _numbers(shapes[outputs["scores"]])
    count = 2 if count == 1 else count
    found.guesses.append(f"classes: 0 to {count - 1}; --classes FILE names them")
    return [str(number) for number in range(count)]


def _named(text: str) -> list[str]:
    import ast

    for read in (json.loads, ast.literal_eval):  # Ultralytics writes a dictionary as Python does
        try:
            value = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(value, dict):
            value = (
                [value[key] for key in sorted(value, key=int)]
                if all(str(key).isdecimal() for key in value)
                else []
            )
        if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
            return value
    return []


def _layout(
    found: _Found, shapes: Mapping[str, Sequence[int]], outputs: Mapping[str, Any], classes: int
) -> dict[str, Any]:
    from gpu_worker.model_files.outputs import LAYOUTS
    from gpu_worker.networks.box_layouts import guessed_layout

    names = list(outputs.get("boxes") or shapes)
    layout = guessed_layout([shapes[name] for name in names], classes)
    if not layout:
        raise ModelUnusable(
            f"{found.path}: how boxes lie in {_told(shapes)} cannot be guessed with {classes} classes; say "
            f"--output layout=NAME, one of {', '.join(LAYOUTS)}, and --classes FILE"
        )
    if layout == "centerface":
        names = names[:3]
    found.guesses.append(
        f"outputs: boxes as {layout!r} has them, in {', '.join(names)}; --output layout=NAME"
    )
    return {"boxes": names, "layout": layout}


def _picture_input(
    found: _Found, said: Mapping[str, Any], size: tuple[int, int], channels: int | None, *, is_raw: bool
) -> dict[str, Any]:
    how = dict(said.get("preprocess") or {})
    if channels == 1:
        how.setdefault("channels", "grey")
    given = {"form": said.get("form", "path"), "height": size[0], "width": size[1]}
    if "mean" in said or "std" in said or "scale" in how or is_raw:
        given |= {"mean": said.get("mean", [0.0] * 3), "std": said.get("std", [1.0] * 3)}
    else:
        given |= {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
        found.guesses.append(
            "input: mean and deviation of ImageNet, which most are trained with; --preprocess"
        )
    if is_raw:
        how.setdefault("scale", 1.0)
    if "resize" not in how:
        found.guesses.append("input: the picture is stretched to its size; --preprocess resize=…")
    return given | {"preprocess": how}


# ── bytes of files ───────────────────────────────────────────────────────────────────────────────────────


def _of_files(found: _Found, inputs: Sequence[Any], how: Mapping[str, Any]) -> dict[str, Any]:
    if not how.get("first_bytes") and not how.get("last_bytes"):
        width = (_shape(inputs[0])[1:] or [None])[0] or "so many"
        raise ModelUnusable(
            f"{found.path} takes {width} numbers of a file; say how many bytes of its beginning and of its "
            "end they are: --preprocess first_bytes=N --preprocess last_bytes=N, and padding=N, strip_bytes=N"
        )
    reader = FileInput(_session(found.model).get_inputs(), preprocess_from(how), str(found.path))
    feed, _ = reader.feed([reader.empty, _noise("tensor(uint8)", (_TRIED_FILE_BYTES,)).tobytes()])
    answers = _answered(found, feed, "shown two files")
    shapes = {name: np.shape(answer) for name, answer in answers.items()}
    task = str(found.wishes.get("task") or FILE_CLASSIFICATION.name)
    reads = task_named(task).reads
    outputs = _outputs(found, reads, shapes, dict(found.wishes.get("outputs") or {}), answers)
    classes = list(found.wishes.get("classes") or ()) or _classes(found, reads, shapes, outputs)
    given = {"form": "path", "preprocess": dict(how)}
    return {"runtime": "onnx", "task": task, "classes": classes, "outputs": outputs, "input": given}


# ── rows of tables, and texts ────────────────────────────────────────────────────────────────────────────


def _of_rows(found: _Found, inputs: Sequence[Any]) -> dict[str, Any]:
    wishes = found.wishes
    said_input = dict(wishes.get("input") or {})
    kinds = [_kind(found, each) for each in inputs]
    is_text = str(wishes.get("task") or "").startswith("text") or said_input.get("form") == "text"
    columns = said_input.get("columns")
    if not is_text and columns is None:
        columns = _columns(found, inputs, kinds)
    _free_rows(found, inputs)
    session = _session(found.model)
    outputs = dict(wishes.get("outputs") or {})
    task = str(wishes.get("task") or "")
    classes = list(wishes.get("classes") or ())
    scores = next(
        (
            str(output.name)
            for output in session.get_outputs()
            if output.name in (outputs.get("scores"), *_PROBABILITIES)
        ),
        "",
    ) or _scores_by_shape(found, session, task)
    if not task:
        task = "tabular-classification" if scores or classes else "tabular-regression"
        found.guesses.append(f"task: {task}, by its outputs; --task says another")
    reads = task_named(task).reads
    if reads == "scores":
        classes = classes or _labels(found, session, scores)
        if scores:
            outputs.setdefault("scores", scores)
        name = scores or (str(session.get_outputs()[0].name) if len(session.get_outputs()) == 1 else "")
        if name and not outputs.get("activation"):
            if name in _PROBABILITIES:
                _check_probabilities(found, session, name)
            else:
                told = (_answers_to_noise(found, session) or {}).get(name)
                outputs["activation"] = _guessed_activation(found, name, told)
        outputs.setdefault("activation", "none")
    elif reads == "values":
        named = [str(output.name) for output in session.get_outputs()]
        outputs.setdefault("values", named[0])
        if len(named) > 1:
            found.guesses.append(f"outputs.values: {outputs['values']}, of {', '.join(named)}")
    manifest: dict[str, Any] = {"runtime": "onnx", "task": task, "outputs": outputs}
    if classes:
        manifest["classes"] = classes
    manifest["input"] = {"form": "text"} if is_text else {"form": "row", "columns": columns}
    if said_input.get("preprocess"):
        manifest["input"]["preprocess"] = said_input["preprocess"]
    return manifest


def _free_rows(found: _Found, inputs: Sequence[Any]) -> None:
    """Makes a batch that the graph has fixed free. Raises `ModelUnusable` where it is not right so."""
    fixed = next((shape[0] for each in inputs if (shape := _shape(each)) and shape[0]), None)
    if fixed is None:
        return
    model = type(found.model)()
    model.CopyFrom(found.model)
    names = {each.name for each in inputs}
    for value in (*(each for each in model.graph.input if each.name in names), *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if dims:
            dims[0].dim_param = "rows"
    del model.graph.value_info[:]
    reason = _answers_each_alone(model, lambda given: _noise_column(given)[:_TRIED_ROWS], "row")
    if reason:
        raise ModelUnusable(
            f"{found.path} takes {fixed} rows a pass and no other number: {reason}; export it with a free "
            "batch (torch.onnx.export(…, dynamic_axes=…))"
        )
    found.model, found.is_changed = model, True
    found.guesses.append(f"the graph declares {fixed} rows, and answers any number: so it is stored")


def _scores_by_shape(found: _Found, session: Any, task: str) -> str:  # noqa: ANN401  # a session
    """The output that has several classes' numbers a row, best after a softmax or sigmoid; "" where none has.

    Where nobody said that the task has classes, only one that comes of these.
    """
    if task and task_named(task).reads != "scores":
        return ""
    wide = [
        str(output.name)
        for output in session.get_outputs()
        if output.type in ("tensor(float)", "tensor(double)", "tensor(float16)")
        and len(output.shape) == 2
        and isinstance(output.shape[1], int)
        and output.shape[1] > 1
    ]
    likely = [name for name in wide if _end_of(found.model, name) in ("Softmax", "Sigmoid")]
    candidates = likely or (wide if task else [])
    if candidates and len(wide) > 1:
        found.guesses.append(f"outputs.scores: {candidates[0]}, of {', '.join(wide)}; --output scores=NAME")
    return candidates[0] if candidates else ""


def _kind(found: _Found, given: Any) -> str:  # noqa: ANN401  # a ValueInfoProto
    kinds = {1: "number", 11: "number", 7: "number", 6: "number", 9: "boolean", 8: "text"}
    kind = kinds.get(given.type.tensor_type.elem_type)
    if kind is None or len(_shape(given)) > 2:
        told = ", ".join(f"{each.name} {_shape(each)}" for each in _inputs(found.model))
        raise ModelUnusable(
            f"{found.path} takes {told}: neither one picture, nor a row's numbers, truth values and texts. "
            "One that takes several pictures, or tokens, cannot be imported from its ONNX file alone"
        )
    return kind


def _columns(found: _Found, inputs: Sequence[Any], kinds: Sequence[str]) -> list[dict[str, str]]:
    from gpu_worker.networks.row_inputs import COLUMNS_KEY

    stored = {entry.key: entry.value for entry in found.model.metadata_props}.get(COLUMNS_KEY)
    if stored is not None:
        return [{"name": column["name"], "kind": column["kind"]} for column in json.loads(stored)]
    if len(inputs) > 1:
        return [{"name": each.name, "kind": kind} for each, kind in zip(inputs, kinds, strict=True)]
    shape = _shape(inputs[0])
    width = shape[1] if len(shape) == 2 else 1
    if not width or width > _MOST_NAMES:
        raise ModelUnusable(
            f"{found.path} takes {width or 'any number of'} columns; say which there are: "
            "--columns a:number,b:text"
        )
    found.guesses.append(f"columns: x0 to x{width - 1}, in this order; --columns names them")
    return [{"name": f"x{number}", "kind": kinds[0]} for number in range(width)]


def _labels(found: _Found, session: Any, scores: str) -> list[str]:  # noqa: ANN401  # a session
    """The labels that a classifier of scikit-learn's converter holds itself, else numbers.

    A classifier made of others holds those of its parts too, which may have names of their own: so what comes
    out is followed to where it is named, the labels before the probabilities.
    """
    shape = next((output.shape for output in session.get_outputs() if output.name == scores), None)
    width = shape[1] if shape and len(shape) == 2 and isinstance(shape[1], int) else None
    others = [str(output.name) for output in session.get_outputs() if output.name != scores]
    zipped = [scores] if _end_of(found.model, scores, _THROUGH - {"ZipMap"}) == "ZipMap" else []
    for name in (*zipped, *others, scores):
        labels = _labels_behind(found.model, name)
        if labels and (width in (None, len(labels)) or (width == 1 and len(labels) == 2)):
            return labels
    if not width or width > _MOST_NAMES:
        raise ModelUnusable(
            f"{found.path} does not say which classes there are; name them with --classes FILE"
        )
    count = 2 if width == 1 else width
    found.guesses.append(f"classes: 0 to {count - 1}; --classes FILE names them")
    return [str(number) for number in range(count)]


def _labels_behind(model: Any, name: str) -> list[str]:  # noqa: ANN401  # a ModelProto
    """What the operator that gives an output, or passes it on, calls its classes; [] where it does not."""
    from onnx import numpy_helper

    made_by = {output: node for node in model.graph.node for output in node.output}
    constants = {each.name: each for each in model.graph.initializer}
    while name in made_by:
        node = made_by[name]
        for attribute in node.attribute:
            if attribute.name in ("classlabels_strings", "classlabels_int64s", "classlabels_ints"):
                labels = [each.decode() for each in attribute.strings] or [
                    str(each) for each in attribute.ints
                ]
                if labels:
                    return labels
        if node.op_type == "ArrayFeatureExtractor" and node.input[0] in constants:
            named = numpy_helper.to_array(constants[node.input[0]]).ravel().tolist()
            return [each.decode() if isinstance(each, bytes) else str(each) for each in named]
        if node.op_type not in (*_THROUGH, "Normalizer"):
            return []
        name = node.input[0]
    return []


def _check_probabilities(found: _Found, session: Any, scores: str) -> None:  # noqa: ANN401  # a session
    """Raises `ModelUnusable` for scores of another kind: those of a decision function have the same name, and
    are 0 where two classes are equally near.
    """
    answers = _answers_to_noise(found, session)
    if answers is None:
        return
    said = np.asarray(answers[scores], np.float64)
    beyond = said[(said < -_MOST_SAME) | (said > 1 + _MOST_SAME)]
    if len(beyond):
        raise ModelUnusable(
            f"{found.path}: {scores} says {beyond[0]:.3g} of a row, which is no probability; train a "
            "classifier that gives probabilities (of scikit-learn one with predict_proba), or say what makes "
            "them of it: --output activation=softmax, or sigmoid"
        )


# ── graphs ───────────────────────────────────────────────────────────────────────────────────────────────


def _inputs(model: Any) -> list[Any]:  # noqa: ANN401  # a ModelProto
    """Those that are fed: old exporters list the weights among them."""
    weights = {each.name for each in model.graph.initializer}
    return [each for each in model.graph.input if each.name not in weights]


def _shape(given: Any) -> list[int | None]:  # noqa: ANN401  # a ValueInfoProto
    """A size of 0 is none that is said."""
    return [dim.dim_value or None for dim in given.type.tensor_type.shape.dim]


def _session(model: Any) -> Any:  # noqa: ANN401  # onnxruntime's session
    from gpu_worker.device import find_device
    from gpu_worker.networks.onnx_network import open_session

    return open_session("the model", find_device("cpu", threads=1), model.SerializeToString())


def _noise(kind: str, shape: Sequence[int]) -> Any:  # noqa: ANN401  # an array
    if math.prod(shape) > _MOST_NOISE:
        raise ModelUnusable(f"the graph takes {list(shape)} numbers at once, and {_MOST_NOISE} can be shown")
    random = np.random.default_rng(7)
    if kind == "tensor(uint8)":
        return random.integers(0, 256, shape, np.uint8)
    types: dict[str, Any] = {"tensor(float16)": np.float16, "tensor(double)": np.float64}
    return random.uniform(0, 1, shape).astype(types.get(kind, np.float32))


def _answers_to_noise(found: _Found, session: Any) -> dict[str, Any] | None:  # noqa: ANN401  # a session
    """Name → what each output says of rows of noise; None of a graph that does not know what it is shown."""
    try:
        feed = {str(given.name): _noise_column(given) for given in session.get_inputs()}
        told = _answered(found, feed, "shown rows of noise")
    except ModelUnusable:
        return None
    return {name: _values(answer) for name, answer in told.items()}


def _noise_column(given: Any) -> Any:  # noqa: ANN401  # an input of a session → an array
    """Values of rows of a table, of either sign where they are numbers, and "" where they are texts."""
    rows, *sides = (side if isinstance(side, int) and side > 0 else None for side in given.shape)
    shape = (rows or _TRIED_TABLE_ROWS, *(side or 1 for side in sides))
    if math.prod(shape) > _MOST_NOISE:
        raise ModelUnusable(f"the graph takes {list(shape)} values at once, and {_MOST_NOISE} can be shown")
    if given.type == "tensor(string)":
        return np.full(shape, "", object)
    numbers = np.random.default_rng(7).normal(0, 10, shape)
    if given.type == "tensor(bool)":
        return numbers > 0
    types: dict[str, Any] = {
        "tensor(int64)": np.int64,
        "tensor(int32)": np.int32,
        "tensor(double)": np.float64,
    }
    return numbers.astype(types.get(given.type, np.float32))


def _answered(found: _Found, feed: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """Name → what each output is. Raises `ModelUnusable` where the graph fails, or never ends."""
    from gpu_worker.networks.onnx_network import first_passes

    session = _session(found.model)
    with first_passes(f"{found.path}, {shown},") as options:
        answers = session.run(None, dict(feed), options)
    return {str(each.name): answer for each, answer in zip(session.get_outputs(), answers, strict=True)}


def _numbers(shape: Sequence[int]) -> int:
    """Numbers of a row, where all but one of its axes are 1; else 0."""
    wide = [size for size in shape[1:] if size != 1]
    return (wide[0] if wide else 1) if len(wide) <= 1 and len(shape) > 1 else 0


def _end_of(model: Any, name: str, through: Collection[str] = _THROUGH) -> str:  # noqa: ANN401  # a ModelProto
    """The operator that gives an output, but for those that only pass it on; "" for an input."""
    made_by = {output: node for node in model.graph.node for output in node.output}
    while name in made_by:
        node = made_by[name]
        if node.op_type not in through:
            return str(node.op_type)
        name = node.input[0]
    return ""


def _told(shapes: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
