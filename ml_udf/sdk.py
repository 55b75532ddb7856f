"""Train, deploy and ask from Python, in Rafiki's four lines (§3).

    import ml_udf.sdk as rafiki

    data = rafiki.import_images("food/")                        # subfolders are labels
    hyper = rafiki.HyperConf(budget="300 epochs")
    job = rafiki.Train("food", data, "image-classification", hyper=hyper).run()
    models = rafiki.get_models(job)                             # waits until the job has ended
    ask = rafiki.Inference(models, function="udf_food").run()
    rafiki.query(ask, ["food/laksa/1.jpg"])

The images stay where they are: the server's workers read them, below its media roots. Needs pyarrow, to send
the names of the images and their labels.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

from ml_udf.client import Client, Options
from ml_udf.client.contents import value_of
from ml_udf.client.statement import Binding, Statement
from ml_udf.errors import BadOption, MlUdfError
from ml_udf.feedback import give_feedback
from ml_udf.name_list import names_of
from ml_udf.registration import register_model
from ml_udf.tokens import TokenCalls
from ml_udf.training import TrainingCalls

__all__ = [
    "HyperConf",
    "Images",
    "Inference",
    "Models",
    "Query",
    "Registered",
    "Train",
    "create_token",
    "extend",
    "feedback",
    "get_models",
    "import_images",
    "pause",
    "query",
    "register",
    "resume",
    "revoke_token",
    "tokens",
    "wish",
]

DEFAULT_ENDPOINT = "http://127.0.0.1:8080"
_IMAGES = (".jpg", ".jpeg", ".png")
_PART_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Images:
    """Labelled images: absolute path and label of each."""

    rows: tuple[tuple[str, str], ...]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class HyperConf:
    """How to tune. budget, models, policy: None = the server's choice; docs/training.md has them.

    models: a text, "lightgbm, xgboost", or a tuple of names. budget: "10 minutes", "200 epochs" or "30
    trials". metric: by which trials are compared; class_weight: "balanced" lets rare classes weigh as much as
    frequent ones. knobs: a hyper-space as JSON, hooks and all;
    patience, delta: when a trial ends, and which gain is worth a checkpoint. refit: whether what is deployed
    is taught the validation rows as well; None = where that is quick. backbone: a registered model on whose
    features heads are learnt.
    visibility: "public" lets jobs on other datasets begin from what this one finds; pretrained: whether this
    one begins from what others have made public.
    """

    budget: str | None = None
    policy: str | None = None
    advisor: str = "random"
    models: str | tuple[str, ...] | None = None
    max_epochs: int | None = None
    size: int | None = None
    seed: int = 0
    visibility: str = "private"
    pretrained: bool = False
    metric: str | None = None
    class_weight: str | None = None
    knobs: tuple[Mapping[str, Any], ...] | None = None
    patience: int | None = None
    delta: float | None = None
    max_trials: int | None = None
    refit: bool | None = None
    backbone: str | None = None


@dataclass(frozen=True, slots=True)
class _How:
    """How a server is reached; see `ml_udf.duckdb.register`."""

    endpoint: str
    token: str | None = field(repr=False)
    allow_plain: bool
    sslrootcert: str | None
    sslcert: str | None
    sslkey: str | None


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A training job on a server."""

    id: int
    endpoint: str
    token: str | None = field(default=None, repr=False)
    allow_plain: bool = False
    sslrootcert: str | None = None
    sslcert: str | None = None
    sslkey: str | None = None


@dataclass(frozen=True, slots=True)
class Models:
    """What a job has found, ready to be deployed."""

    job: TrainingJob
    best_score: float


@dataclass(frozen=True, slots=True)
class Registered:
    """A model on a server, which answers under its own name. difference: of its answers, on the sample."""

    name: str
    version: int
    task: str
    difference: float


@dataclass(frozen=True, slots=True)
class Query:
    """A deployed function; `accuracy` on held-out images lies in [low, high] with 95 %.

    models: of a function by wish the one that answers while nobody else asks; its accuracy is None, as each
    candidate has its own. combine: the rule by which several models answer together; "" of one alone.
    """

    function: str
    models: tuple[str, ...]
    accuracy: float | None
    low: float | None
    high: float | None
    endpoint: str
    token: str | None = field(default=None, repr=False)
    allow_plain: bool = False
    sslrootcert: str | None = None
    sslcert: str | None = None
    sslkey: str | None = None
    combine: str = ""


def import_images(folder: str | Path) -> Images:
    """The images below `folder`, whose subfolders are named for what is on them. Raises `BadOption`."""
    root = Path(folder).absolute()
    labels = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    rows = tuple(
        (str(image), label.name)
        for label in labels
        for image in sorted(label.rglob("*"))
        if image.suffix.lower() in _IMAGES
    )
    if len({label for _, label in rows}) < 2:
        raise BadOption(
            f"{root} holds images of {len({label for _, label in rows})} labels",
            hint="put them into one subfolder for each label: food/laksa/1.jpg",
        )
    return Images(rows)


class Train:
    """A job to be. `name` is the dataset's; `task` what is asked of an image."""

    def __init__(
        self,
        name: str,
        data: Images,
        task: str = "image-classification",
        *,
        hyper: HyperConf | None = None,
        endpoint: str = DEFAULT_ENDPOINT,
        token: str | None = None,
        allow_plain: bool = False,
        sslrootcert: str | None = None,
        sslcert: str | None = None,
        sslkey: str | None = None,
    ) -> None:
        self._name = name
        self._data = data
        self._task = task
        self._hyper = hyper or HyperConf()
        self._how = _How(endpoint, token, allow_plain, sslrootcert, sslcert, sslkey)

    def run(self) -> TrainingJob:
        """Send the dataset and begin; returns once the job runs. Raises the errors of `ml_udf.errors`."""
        hyper = self._hyper
        dataset = {
            "name": self._name,
            "query": f"{len(self._data)} images of a folder",
            "target": "label",
            "key": "path",
            "task": self._task,
        }
        job = {
            "dataset": self._name,
            "budget": hyper.budget,
            "policy": hyper.policy,
            "advisor": hyper.advisor,
            "models": names_of(hyper.models, "models") or None,
            "max_epochs": hyper.max_epochs,
            "size": hyper.size,
            "seed": hyper.seed,
            "visibility": hyper.visibility,
            "pretrained": hyper.pretrained,
            "metric": hyper.metric,
            "class_weight": hyper.class_weight,
            "knobs": None if hyper.knobs is None else list(hyper.knobs),
            "patience": hyper.patience,
            "delta": hyper.delta,
            "max_trials": hyper.max_trials,
            "refit": hyper.refit,
            "backbone": hyper.backbone,
        }
        with _calls(self._how) as calls:
            calls.push(dataset, _parts(self._data))
            return TrainingJob(int(calls.train(job)["id"]), *astuple(self._how))


def register(
    estimator: Any,  # noqa: ANN401  # scikit-learn ships no types
    sample: Any,  # noqa: ANN401  # a frame, a matrix, or texts
    name: str,
    *,
    classes: Sequence[str] | None = None,
    bound: float = 1e-4,
    endpoint: str = DEFAULT_ENDPOINT,
    token: str | None = None,
    allow_plain: bool = False,
    sslrootcert: str | None = None,
    sslcert: str | None = None,
    sslkey: str | None = None,
) -> Registered:
    """Register a fitted scikit-learn estimator, or pipeline, as the next version of the model `name`.

    It is converted to ONNX here, in your process, and compared on `sample` with its own predict_proba or
    predict; no pickle is sent. sample: a DataFrame, a matrix [n, columns], or n texts. classes: names in
    place of the estimator's own. bound: the largest difference; of a regressor, as a part of its largest
    answer. Raises `BadOption` where it cannot be converted or differs, and the errors of `ml_udf.errors`.
    """
    from ml_udf.estimator import convert

    found = convert(estimator, sample, classes=classes, bound=bound)
    with _client(_How(endpoint, token, allow_plain, sslrootcert, sslcert, sslkey)) as client:
        told = register_model(client, {**found.manifest, "name": name}, lambda _: found.content)
    return Registered(str(told["name"]), int(told["version"]), str(told["task"]), found.difference)


def pause(job: TrainingJob) -> None:
    """Let the job rest until `resume`; epochs under way end first. Raises `BadOption` if it does not run."""
    with _calls(job) as calls:
        calls.pause(job.id)


def resume(job: TrainingJob) -> None:
    """Go on with a paused job. Raises `BadOption` if it has ended."""
    with _calls(job) as calls:
        calls.resume(job.id)


def extend(job: TrainingJob, budget: int | str) -> None:
    """Go on with a job that has ended, with so much in all, "20 minutes" or a number of epochs. Raises
    `BadOption`.
    """
    with _calls(job) as calls:
        calls.extend(job.id, budget)


def get_models(job: TrainingJob, *, timeout_s: float | None = None) -> Models:
    """What the job has found, once it has ended. Raises `BadOption` where it found nothing, or still runs."""
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    with _calls(job) as calls:
        for found in calls.watch(job.id):
            if found["state"] in ("running", "paused") and end_s is not None and time.monotonic() > end_s:
                raise BadOption(
                    f"job {job.id} is still {found['state']} after {timeout_s:g} s",
                    hint="wait longer, or cancel it",
                )
    if found["best_score"] is None:
        raise BadOption(f"job {job.id} is {found['state']} and found nothing: {found['reason']}")
    return Models(job, found["best_score"])


def create_token(
    name: str,
    scopes: Sequence[str],
    *,
    patterns: Mapping[str, Sequence[str]] | None = None,
    shares: Mapping[str, float | str] | None = None,
    users: Sequence[str] = (),
    expires: str | None = None,
    endpoint: str = DEFAULT_ENDPOINT,
    token: str | None = None,
    allow_plain: bool = False,
    sslrootcert: str | None = None,
    sslcert: str | None = None,
    sslkey: str | None = None,
) -> str:
    """Make a token; its secret, which nobody keeps. Raises the errors of `ml_udf.errors`.

    scopes: of infer, read, train, deploy, admin. patterns, shares, users, expires: see
    `ml_udf.tokens.TokenCalls.create`. token: an admin's; None where the server has none yet.
    """
    with _client(_How(endpoint, token, allow_plain, sslrootcert, sslcert, sslkey)) as client:
        made = TokenCalls(client).create(
            name, scopes, patterns=patterns, shares=shares, users=users, expires=expires
        )
    return str(made["secret"])


def tokens(
    *,
    endpoint: str = DEFAULT_ENDPOINT,
    token: str | None = None,
    allow_plain: bool = False,
    sslrootcert: str | None = None,
    sslcert: str | None = None,
    sslkey: str | None = None,
) -> list[dict[str, Any]]:
    """The tokens of a server, without their secrets. Raises the errors of `ml_udf.errors`."""
    with _client(_How(endpoint, token, allow_plain, sslrootcert, sslcert, sslkey)) as client:
        return TokenCalls(client).all()


def revoke_token(
    name: str,
    *,
    endpoint: str = DEFAULT_ENDPOINT,
    token: str | None = None,
    allow_plain: bool = False,
    sslrootcert: str | None = None,
    sslcert: str | None = None,
    sslkey: str | None = None,
) -> None:
    """Let a token count no more. Raises the errors of `ml_udf.errors`."""
    with _client(_How(endpoint, token, allow_plain, sslrootcert, sslcert, sslkey)) as client:
        TokenCalls(client).revoke(name)


class Inference:
    """A function to be, made of what a job has found."""

    def __init__(
        self,
        models: Models,
        function: str,
        *,
        choose: str = "ensemble",
        slo_ms: float | None = None,
        task: str | None = None,
    ) -> None:
        """task: another one that the models do, such as "image-embedding"; None = their own."""
        self._models = models
        self._function = function
        self._choose = choose
        self._slo_ms = slo_ms
        self._task = task

    def run(self) -> Query:
        """Deploy it. Raises the errors of `ml_udf.errors`."""
        job = self._models.job
        with _calls(job) as calls:
            told = calls.deploy(
                job.id, self._function, choose=self._choose, slo_ms=self._slo_ms, task=self._task
            )
        return Query(
            told["function"],
            tuple(told["models"]),
            told["test_accuracy"],
            told["test_low"],
            told["test_high"],
            **asdict(_how_of(job)),
            combine=told.get("combine") or "",
        )


def wish(
    function: str,
    *,
    dataset: str | None = None,
    task: str | None = None,
    purpose: str | None = None,
    min_accuracy: float | None = None,
    slo_ms: float | None = None,
    cost: float | None = None,
    endpoint: str = DEFAULT_ENDPOINT,
    token: str | None = None,
    allow_plain: bool = False,
    sslrootcert: str | None = None,
    sslcert: str | None = None,
    sslkey: str | None = None,
) -> Query:
    """Make a function that names no model: whichever keeps what is wished answers, call by call.

    dataset: models that were trained on it · task: that do it · purpose: that do what this model or function
    does; one of them has to be there. min_accuracy: right so often on held-out rows, at the lower end of the
    95 % interval · slo_ms: answered so soon · cost: of 1,000 rows at the most, in seconds of a device or,
    where the server has prices, in their currency. Raises `BadOption` with the nearest that can be had where
    nothing keeps it, and the errors of `ml_udf.errors`. Source: INFaaS (ATC 2021), §3.
    """
    wants = {
        "dataset": dataset,
        "task": task,
        "purpose": purpose,
        "min_accuracy": min_accuracy,
        "slo_ms": slo_ms,
        "cost": cost,
    }
    how = _How(endpoint, token, allow_plain, sslrootcert, sslcert, sslkey)
    with _calls(how) as calls:
        told = calls.wish(function, {name: value for name, value in wants.items() if value is not None})
    return Query(told["name"], tuple(told["models"]), None, None, None, **asdict(how))


def query(
    ask: Query,
    images: Sequence[str | Path | bytes],
    *,
    context: str | None = None,
    slo_ms: float | None = None,
    min_accuracy: float | None = None,
    min_agreement: float | None = None,
) -> list[Any]:
    """The answer to each image: a path on the server's host, or the encoded image itself.

    As its task has it: a label, a list of labels, a number, an array of them, a list of boxes, JSON.

    context: for whom or what is asked, such as a user; what `feedback` says in it weighs the models there.
    slo_ms, min_accuracy: limits on which of the models answer: how soon, and how often rightly.
    min_agreement: how often as the full function would answer, where a proxy may answer for it.
    """
    options = Options(context=context, slo_ms=slo_ms, min_accuracy=min_accuracy, min_agreement=min_agreement)
    encoded = [image for image in images if isinstance(image, bytes)]
    paths = [str(image) for image in images if not isinstance(image, bytes)]
    with _client(ask) as client:
        of_encoded = _answers(client, ask.function, encoded, options, "image")
        of_paths = _answers(client, ask.function, paths, options)
    return [next(of_encoded if isinstance(image, bytes) else of_paths) for image in images]


def feedback(
    ask: Query,
    images: Sequence[str | Path | bytes],
    labels: Sequence[str | None],
    *,
    context: str | None = None,
) -> list[str | None]:
    """Say what images show: `counted`, `changed` or `repeated` for each, None where the label is None.

    context: in which that is true, as in `query`. Raises the errors of `ml_udf.errors`.
    """
    inputs = [str(image) if isinstance(image, Path) else image for image in images]
    with _client(ask) as client:
        statement = Statement(client, Binding(ask.function), Options(context=context))
        return give_feedback(client, statement, inputs, labels)


def _answers(
    client: Client,
    function: str,
    inputs: Sequence[str | bytes],
    options: Options,
    input_name: str | None = None,
) -> Iterator[Any]:
    if not inputs:
        return iter(())
    content = client.look_up(function, input_name=input_name).output_content
    found = client.predict(function, inputs, options, input_name=input_name).values
    return iter([value_of(answer, content) for answer in found])


@contextlib.contextmanager
def _calls(how: _How | TrainingJob) -> Iterator[TrainingCalls]:
    with _client(how) as client:
        yield TrainingCalls(client)


def _client(how: _How | TrainingJob | Query) -> contextlib.closing[Client]:
    return contextlib.closing(Client(**asdict(_how_of(how))))


def _how_of(how: _How | TrainingJob | Query) -> _How:
    """The connection alone, of what is reached by it."""
    return _How(**{each.name: getattr(how, each.name) for each in fields(_How)})


def _parts(data: Images) -> Iterator[bytes]:
    try:
        import pyarrow as pa
    except ModuleNotFoundError as exc:
        raise MlUdfError("pyarrow is missing", hint="pip install 'ml_udf[duckdb]'") from exc
    rows: Any = sorted(data.rows)
    for start in range(0, len(rows), _PART_ROWS):
        paths, labels = zip(*rows[start : start + _PART_ROWS], strict=True)
        batch = pa.RecordBatch.from_pydict({"path": list(paths), "label": list(labels)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield sink.getvalue().to_pybytes()
