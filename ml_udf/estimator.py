"""A fitted scikit-learn estimator as ONNX, converted where it was made: no pickle leaves the process.

What it answers to a sample is compared with what the converted file answers; where they differ, nothing
comes of it. scikit-learn, skl2onnx and ONNX Runtime are imported when they are needed:
`pip install 'ml_udf[tabular]' onnxruntime`.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ml_udf.boosted_estimator import know_boosted_trees
from ml_udf.errors import BadOption, MlUdfError

__all__ = ["ConvertedEstimator", "convert"]

# Those of the oldest ONNX Runtime that pyproject permits.
_OPSETS = {"": 17, "ai.onnx.ml": 3}
_MATRIX = "X"
_TEXT = "text"
_MOST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of the sample. input: of the graph, which it fills or has a place in. datatype: of that."""

    name: str
    kind: str
    input: str
    datatype: str


@dataclass(frozen=True, slots=True)
class ConvertedEstimator:
    """manifest: model.json's fields, but for name and version. difference: the largest on the sample."""

    manifest: dict[str, Any]
    content: bytes
    difference: float


def convert(
    estimator: Any,  # noqa: ANN401  # scikit-learn ships no types
    sample: Any,  # noqa: ANN401  # a frame, a matrix, or texts
    *,
    classes: Sequence[str] | None = None,
    bound: float = 1e-4,
) -> ConvertedEstimator:
    """The estimator as ONNX, which answers to the rows of `sample` as it does itself, to within `bound`.

    sample: a DataFrame, a matrix [n, columns], or n texts. classes: names in place of the estimator's own.
    For regressors, `bound` is a part of the largest answer. Raises `BadOption`, with what does not fit.
    """
    numpy, base = _module("numpy"), _module("sklearn.base")
    rows = len(sample)
    if not rows:
        raise BadOption("the sample is empty", hint="give some rows that the estimator has not seen, 100 say")
    # Asked about anything else, scikit-learn raises an error of its own insides.
    is_estimator = hasattr(estimator, "fit") and not isinstance(estimator, type)
    is_classifier = is_estimator and bool(base.is_classifier(estimator))
    if not is_classifier and not (is_estimator and base.is_regressor(estimator)):
        raise BadOption(
            f"{type(estimator).__name__} is no classifier and no regressor",
            hint="give a fitted one, or a pipeline that ends with one",
        )
    wanted = _answers(estimator, sample, is_classifier)
    scale = 1.0 if is_classifier else float(numpy.abs(wanted).max()) or 1.0
    reasons: list[str] = []
    for columns in _ways(estimator, sample):
        try:
            content, output = _converted(estimator, columns, is_classifier)
            gaps = numpy.abs(_run(content, columns, sample, rows) - wanted).max(axis=1)
        except Exception as exc:  # the converter's errors have no common base
            # The converter wraps what happened into all that it was about.
            reasons.append(_first_line(exc.__cause__ or exc))
            continue
        difference = float(gaps.max()) / scale
        if difference <= bound and not _survives_unknown_texts(content, columns):
            has_texts = any(column.datatype == "string" for column in columns)
            missing = "text is unknown or missing" if has_texts else "number is missing"
            raise BadOption(
                f"{type(estimator).__name__} as ONNX fails where a {missing}, and all rows beside it would "
                "fail too",
                hint="say what such a text is: OneHotEncoder(handle_unknown='ignore'), say"
                if has_texts
                else "put a SimpleImputer before the step that fails",
            )
        if difference <= bound:
            manifest = _manifest(estimator, columns, wanted.shape[1], is_classifier, classes)
            manifest["outputs"] = {"scores" if is_classifier else "values": output}
            return ConvertedEstimator(manifest, content, difference)
        worst = int((gaps > bound * scale).sum())
        reasons.append(f"as ONNX {worst} of {rows} rows differ, by up to {difference:.3g}")
    raise BadOption(
        f"{type(estimator).__name__} cannot be served as ONNX: {'; '.join(dict.fromkeys(reasons))}",
        hint="skl2onnx does not know every estimator: use another step in its place, or compute it in SQL",
    )


def _answers(estimator: Any, sample: Any, is_classifier: bool) -> Any:  # noqa: ANN401  # an array
    """float64 [n, classes] probabilities, or [n, 1] values, by the estimator itself."""
    numpy = _module("numpy")
    if is_classifier and not hasattr(estimator, "predict_proba"):
        raise BadOption(
            f"{type(estimator).__name__} says no probabilities",
            hint="use one with predict_proba: CalibratedClassifierCV gives it to any classifier",
        )
    try:
        found = estimator.predict_proba(sample) if is_classifier else estimator.predict(sample)
    except Exception as exc:  # scikit-learn raises what its parts do
        raise BadOption(
            f"the estimator does not answer to the sample: {_first_line(exc)}",
            hint="fit it first, and give the sample all the columns that it was fitted on",
        ) from exc
    if isinstance(found, list):
        raise BadOption("the estimator answers several questions at once", hint="register one for each")
    found = numpy.asarray(found, numpy.float64)
    found = found.reshape(len(found), -1)
    if not is_classifier and found.shape[1] != 1:
        raise BadOption(
            f"the estimator answers {found.shape[1]} values a row", hint="register one for each of them"
        )
    return found


def _ways(estimator: Any, sample: Any) -> Iterator[tuple[_Column, ...]]:  # noqa: ANN401
    """How rows may be shown to the converted estimator, the likeliest first."""
    if not hasattr(sample, "columns"):
        if _are_texts(sample):
            yield (_Column(_TEXT, "text", _TEXT, "string"),)
            return
        numpy = _module("numpy")
        matrix = numpy.asarray(sample)
        if matrix.ndim != 2 or matrix.dtype.kind not in "fiub":
            raise BadOption(
                f"the sample is {matrix.dtype} {list(matrix.shape)}",
                hint="give a DataFrame, a matrix [rows, columns] of numbers, or a list of texts",
            )
        named = getattr(estimator, "feature_names_in_", None)
        names = [f"x{at}" for at in range(matrix.shape[1])] if named is None else list(map(str, named))
        yield tuple(_Column(name, "number", _MATRIX, "float") for name in names)
        return
    kinds = [(str(name), *_kind(sample[name], str(name))) for name in sample.columns]
    for whole in ("float", "int64"):
        yield tuple(
            _Column(name, kind, name, "string" if kind == "text" else whole if is_whole else "float")
            for name, kind, is_whole in kinds
        )
        if all(kind != "text" for _, kind, _ in kinds):
            yield tuple(_Column(name, kind, _MATRIX, "float") for name, kind, _ in kinds)


def _kind(column: Any, name: str) -> tuple[str, bool]:  # noqa: ANN401  # a Series
    """number, text or boolean; and whether its numbers are whole ones, none of them missing."""
    numpy = _module("numpy")
    values = column.to_numpy()
    if values.dtype.kind == "b":
        return "boolean", False
    if values.dtype.kind in "iuf":
        return "number", values.dtype.kind != "f"
    there = [value for value in values.tolist() if not _is_missing(value)]
    if there and all(isinstance(value, str) for value in there):
        return "text", False
    if there and all(isinstance(value, bool | numpy.bool_) for value in there):
        return "boolean", False
    if there and all(isinstance(value, int | float) for value in there):
        return "number", False
    raise BadOption(
        f"the sample's column {name!r} is {column.dtype}, and a row holds numbers, texts and booleans",
        hint="compute a number or a text of it in SQL, and fit the estimator on that",
    )


def _converted(
    estimator: Any,  # noqa: ANN401
    columns: Sequence[_Column],
    is_classifier: bool,
) -> tuple[bytes, str]:
    """The file, and the name of its only output."""
    types = _module("skl2onnx.common.data_types")
    skl2onnx = _module("skl2onnx")
    know_boosted_trees()
    of = {
        "float": types.FloatTensorType,
        "int64": types.Int64TensorType,
        "string": types.StringTensorType,
    }
    initial = [(name, of[part[0].datatype]([None, len(part)])) for name, part in _by_input(columns).items()]
    text = _module("sklearn.feature_extraction.text")
    # The converter's own locale, en_US, is not on every host that serves.
    options: dict[Any, Any] = {
        kind: {"locale": "C.UTF-8"} for kind in (text.TfidfVectorizer, text.CountVectorizer)
    }
    if is_classifier:
        options[id(estimator)] = {"zipmap": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = skl2onnx.to_onnx(
            estimator,
            initial_types=initial,
            options=options,
            target_opset=_OPSETS,
        )
    graph = model.graph
    _name_inputs(graph, [name for name, _ in initial])
    # A classifier's label comes first; a regressor has one output.
    answers = graph.output[-1]
    del graph.output[:-1]
    content: bytes = model.SerializeToString()
    return content, str(answers.name)


def _name_inputs(graph: Any, names: Sequence[str]) -> None:  # noqa: ANN401  # onnx ships no types
    """Give the inputs the names of their columns: the converter writes `we_ird_` for `we ird.`, and has names
    of its own inside, `label` among them, which make way.
    """
    called = dict(zip((each.name for each in graph.input), names, strict=True))
    inside = {name for node in graph.node for name in node.output}
    inside |= {each.name for each in graph.initializer}
    for name in sorted(inside.intersection(names)):
        called[name] = f"{name}_"
        while called[name] in inside.union(names):
            called[name] += "_"
    for each in (*graph.input, *graph.initializer, *graph.value_info, *graph.output):
        each.name = called.get(each.name, each.name)
    for node in graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [called.get(name, name) for name in tensors]


def _run(content: bytes, columns: Sequence[_Column], sample: Any, rows: int) -> Any:  # noqa: ANN401
    """What ONNX Runtime answers to the sample: [n, outputs]."""
    numpy, runtime = _module("numpy"), _module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    feed = {}
    for name, part in _by_input(columns).items():
        values = [_values(sample, column, columns.index(column)) for column in part]
        feed[name] = numpy.stack(values, axis=1)
    (found,) = session.run(None, feed)
    return numpy.asarray(found, numpy.float64).reshape(rows, -1)


def _survives_unknown_texts(content: bytes, columns: Sequence[_Column]) -> bool:
    """Whether the graph answers to a row that says nothing."""
    numpy = _module("numpy")
    whole = [math.nan if column.datatype == "float" else 0 for column in columns]
    row = numpy.array(
        [
            [
                "" if column.datatype == "string" else value
                for column, value in zip(columns, whole, strict=True)
            ]
        ],
        object,
    )
    try:
        _run(content, columns, row, 1)
    except Exception:  # ONNX Runtime's errors have no common base
        return False
    return True


def _values(sample: Any, column: _Column, place: int) -> Any:  # noqa: ANN401  # an array [n]
    numpy = _module("numpy")
    if hasattr(sample, "columns"):
        values = sample.iloc[:, place].tolist()
    elif column.input == _TEXT and getattr(sample, "ndim", 1) == 1:
        values = list(sample)
    else:
        values = numpy.asarray(sample)[:, place].tolist()
    if column.datatype == "string":
        return numpy.array(["" if _is_missing(value) else str(value) for value in values], object)
    kept = [math.nan if _is_missing(value) else value for value in values]
    return numpy.array(kept, numpy.int64 if column.datatype == "int64" else numpy.float32)


def _manifest(
    estimator: Any,  # noqa: ANN401
    columns: Sequence[_Column],
    outputs: int,
    is_classifier: bool,
    classes: Sequence[str] | None,
) -> dict[str, Any]:
    is_text = columns[0].input == _TEXT and len(columns) == 1 and columns[0].datatype == "string"
    kind = "text" if is_text else "tabular"
    manifest: dict[str, Any] = {
        "format": 1,
        "runtime": "onnx",
        "architecture": type(estimator).__name__,
        "weights": "model.onnx",
        "input": {"form": "text"}
        if is_text
        else {"form": "row", "columns": [{"name": c.name, "kind": c.kind} for c in columns]},
    }
    if not is_classifier:
        return manifest | {"task": f"{kind}-regression", "classes": []}
    named = list(map(str, classes)) if classes is not None else list(map(str, estimator.classes_))
    if len(named) != outputs:
        raise BadOption(f"{len(named)} classes are named, and the estimator has {outputs}")
    several = bool(getattr(estimator, "multilabel_", False))
    return manifest | {"task": f"{kind}-{'multilabel' if several else 'classification'}", "classes": named}


def _by_input(columns: Sequence[_Column]) -> dict[str, list[_Column]]:
    found: dict[str, list[_Column]] = {}
    for column in columns:
        found.setdefault(column.input, []).append(column)
    return found


def _are_texts(sample: Any) -> bool:  # noqa: ANN401
    return all(isinstance(value, str) for value in sample)


def _is_missing(value: object) -> bool:
    return value is None or value != value or type(value).__name__ in ("NAType", "NaTType")


def _module(name: str) -> Any:  # noqa: ANN401  # of a library without types
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        raise MlUdfError(f"{exc.name} is missing", hint="pip install 'ml_udf[tabular]' onnxruntime") from exc


def _first_line(exc: BaseException) -> str:
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return (lines[0] if lines else type(exc).__name__)[:300]
