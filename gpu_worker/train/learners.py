"""From the spec of a TrainEpoch or Evaluate message to its learner, by architecture, over one snapshot.

Holds the snapshots that were asked for last, as many as fit into a fixed share of memory: images are decoded,
texts and tables read, once for all trials. What is mapped from disk counts as nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from gpu_worker.errors import BadRequest
from gpu_worker.model_files.manifest import InputSpec
from gpu_worker.networks.build import build_module
from gpu_worker.train.augment import Augment
from gpu_worker.train.joined_examples import taught_of
from gpu_worker.train.learner import Evaluation, Learner, Objective, Spec
from gpu_worker.train.network_learner import NetworkLearner
from gpu_worker.train.network_learner import evaluated as network_evaluated
from gpu_worker.train.snapshot import SnapshotFile, read_snapshot, read_texts
from gpu_worker.train.spec import TrainSpec
from gpu_worker.zoo import DETECTORS, LINEAR_TEXT, TABULAR, TEXT_ARCHITECTURES
from gpu_worker.zoo.text import TextModule

if TYPE_CHECKING:
    from gpu_worker.train.boxed_images import BoxedSnapshot
    from gpu_worker.train.embeddings import EmbeddedRows
    from gpu_worker.train.linear_texts import LinearSpec, SparseTexts
    from gpu_worker.train.tabular import TableSnapshot

__all__ = ["Learners", "train_spec"]

_MOST_HELD = 16
_OF_A_TRIAL = ("architecture", "epochs", "seed")
_NO_KNOBS = ("backbone",)
_CHOICES = ("dates", "categories", "texts")


@dataclass(slots=True)
class Learners:
    """read: path → the file's bytes; raises `RowFault`. on_step: hears of rows as they are read. ahead: hears
    of paths that are read next, in their order.
    """

    device: str
    read: Callable[[bytes], bytes]
    max_pixels: int
    allow_import: bool
    on_step: Callable[[], None] = lambda: None
    ahead: Callable[[Sequence[str]], None] = lambda rows: None
    most_bytes: int = 2 << 30
    _snapshots: dict[tuple[object, ...], Any] = field(default_factory=dict)

    def load(self, raw: Spec, snapshot: str, objective: Objective, should_stop: Callable[[], bool]) -> None:
        """Import what trials of that architecture need, and compute what all of a snapshot share.

        Raises as `begin`, and `Cancelled`.
        """
        if raw.get("backbone"):
            import_module("gpu_worker.train.tabular_learner")
            self._embedded(snapshot, raw, objective, should_stop)
        elif raw.get("architecture") in TABULAR:
            import_module("gpu_worker.train.tabular_learner")
        elif raw.get("architecture") == LINEAR_TEXT:
            import_module("gpu_worker.train.linear_texts")

    def begin(self, raw: Spec, snapshot: str, objective: Objective, start: str, start_epoch: int) -> Learner:
        """A trial that has done `start_epoch` epochs. Raises `WorkerError`, `ValueError`, `OSError`."""
        if raw.get("backbone"):
            from gpu_worker.train.linear_heads import head_made
            from gpu_worker.train.tabular_learner import TabularLearner, TabularSpec

            head = TabularSpec(**_tabular(raw)[0])
            embedded = self._embedded(snapshot, raw, objective)
            making = partial(head_made, objective=objective)
            return TabularLearner(head, embedded, objective, making, embedded.skipped)
        if raw.get("architecture") in TABULAR:
            from gpu_worker.train.tabular_learner import TabularLearner, TabularSpec

            if start or start_epoch:
                raise BadRequest("tabular models share no weights; use the policy 'study'")
            own, choices = _tabular(raw)
            table = self._table(snapshot, objective.classes, choices)
            return TabularLearner(TabularSpec(**own), table, objective)
        if raw.get("architecture") == LINEAR_TEXT:
            from gpu_worker.train.linear_texts import LinearTextLearner, linear_spec

            linear = linear_spec(raw)
            texts = self._sparse(snapshot, linear, objective)
            return LinearTextLearner(linear, texts, objective, start=start, start_epoch=start_epoch)
        spec = train_spec(raw)
        if spec.architecture in DETECTORS:
            from gpu_worker.train.detector_learner import DetectorLearner

            boxed = self._boxed(snapshot, objective.classes, spec)
            return DetectorLearner(
                spec,
                objective,
                boxed.examples(*objective.taught),
                boxed.examples("validation"),
                skipped=len(boxed.skipped),
                start=start,
                start_epoch=start_epoch,
                device=self.device,
            )
        rows = self._rows(snapshot, objective.classes, spec)
        return NetworkLearner(
            spec,
            objective,
            taught_of(rows.examples(*objective.taught)),
            rows.examples("validation"),
            skipped=len(rows.skipped),
            start=start,
            start_epoch=start_epoch,
            device=self.device,
            allow_import=self.allow_import,
        )

    def evaluate(
        self, raw: Spec, snapshot: str, objective: Objective, start: str, split: str
    ) -> Evaluation | None:
        """What the checkpoint `start` answers to a split; None for an empty one. Raises as `begin`."""
        if raw.get("backbone"):
            from gpu_worker.train.tabular_learner import evaluated as head_evaluated

            told = head_evaluated(self._embedded(snapshot, raw, objective), split, start)
            return told if len(told.targets) else None
        if raw.get("architecture") in TABULAR:
            from gpu_worker.train.tabular import read_table
            from gpu_worker.train.tabular_learner import evaluated, table_of

            # The checkpoint's own columns: a snapshot that it was not fitted on has other means and texts.
            table = table_of(start)
            rows_of_table = read_table(snapshot, objective.classes, table, (split,), self.on_step)
            found = evaluated(rows_of_table, split, start)
            return found if len(found.targets) else None
        if raw.get("architecture") == LINEAR_TEXT:
            from gpu_worker.train.linear_texts import evaluated as linear_evaluated
            from gpu_worker.train.linear_texts import linear_spec

            linear = linear_spec(raw)
            texts = self._sparse(snapshot, linear, objective)
            answered = linear_evaluated(texts, objective, split, start)
            return answered if len(answered.targets) else None
        spec = train_spec(raw)
        if spec.architecture in DETECTORS:
            from gpu_worker.train.detector_learner import detector_evaluated

            boxed = self._boxed(snapshot, objective.classes, spec).examples(split)
            return detector_evaluated(spec, boxed, start, device=self.device) if len(boxed) else None
        examples = self._rows(snapshot, objective.classes, spec).examples(split)
        if not len(examples):
            return None
        return network_evaluated(spec, examples, start, device=self.device, allow_import=self.allow_import)

    def _rows(self, path: str, classes: Sequence[str], spec: TrainSpec) -> SnapshotFile:
        if spec.architecture in TEXT_ARCHITECTURES:
            options = dict(spec.architecture_options)
            key: tuple[object, ...] = (path, spec.architecture, repr(sorted(options.items())))

            def read() -> SnapshotFile:
                module = cast("TextModule", build_module(spec.architecture, len(classes), options))
                return read_texts(path, classes, module.tokeniser, module.encode, self.on_step)
        else:
            key = (path, spec.input.height, spec.input.width)

            def read() -> SnapshotFile:
                return read_snapshot(
                    path,
                    classes,
                    height=spec.input.height,
                    width=spec.input.width,
                    read=self.read,
                    max_pixels=self.max_pixels,
                    ahead=self.ahead,
                )

        found: SnapshotFile = self._held(key, read)
        return found

    def _embedded(
        self,
        path: str,
        raw: Spec,
        objective: Objective,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> EmbeddedRows:
        from gpu_worker.train.embeddings import Embedder, Reading, backbone_of, read_embedded

        backbone, directory = backbone_of(raw)
        reading = Reading(self.read, self.max_pixels, self.ahead)
        embedder = Embedder(backbone, directory, self.device, reading, self.allow_import)

        def stops() -> bool:
            self.on_step()
            return should_stop()

        found: EmbeddedRows = self._held(
            (path, "embedded", backbone.sha256, objective.task.name, objective.classes),
            lambda: read_embedded(path, objective, embedder, stops),
        )
        return found

    def _boxed(self, path: str, classes: Sequence[str], spec: TrainSpec) -> BoxedSnapshot:
        from gpu_worker.train.boxed_images import read_boxed

        height, width = spec.input.height, spec.input.width
        found: BoxedSnapshot = self._held(
            (path, "boxes", height, width),
            lambda: read_boxed(
                path,
                classes,
                height=height,
                width=width,
                read=self.read,
                max_pixels=self.max_pixels,
                ahead=self.ahead,
            ),
        )
        return found

    def _sparse(self, path: str, linear: LinearSpec, objective: Objective) -> SparseTexts:
        from gpu_worker.train.linear_texts import ngrams_of, read_sparse

        ngrams = ngrams_of(linear, objective)
        found: SparseTexts = self._held(
            (path, ngrams, objective.task.name), lambda: read_sparse(path, objective, ngrams, self.on_step)
        )
        return found

    def _table(self, path: str, classes: Sequence[str], choices: dict[str, bool]) -> TableSnapshot:
        from gpu_worker.train.table_fit import ColumnChoices
        from gpu_worker.train.tabular import read_table

        made = ColumnChoices(**choices)
        found: TableSnapshot = self._held(
            (path, "table", made),
            lambda: read_table(path, classes, on_step=self.on_step, choices=made),
        )
        return found

    def _held(self, key: tuple[object, ...], read: Callable[[], Any]) -> Any:  # noqa: ANN401  # of the kind
        found = self._snapshots.pop(key, None)
        if found is None:
            found = read()
        self._snapshots[key] = found  # the last of them was asked for last
        held_bytes = sum(snapshot.nbytes for snapshot in self._snapshots.values())
        for other in list(self._snapshots)[:-1]:
            if held_bytes > self.most_bytes or len(self._snapshots) > _MOST_HELD:
                held_bytes -= self._snapshots.pop(other).nbytes
        return found


def train_spec(raw: Spec) -> TrainSpec:
    """A `TrainSpec` from JSON: its fields, `size` in pixels for `input`, those of `Augment` below `augment`.

    Raises `BadRequest` for a field that there is not, `ValueError` for a value that cannot be.
    """
    given = dict(raw)
    size = int(given.pop("size", 64))
    augment = Augment(**given.pop("augment", {}))
    unknown = sorted(given.keys() - {item.name for item in fields(TrainSpec)})
    if unknown:
        raise BadRequest(f"a trial has no knob {unknown[0]!r}")
    pixels = InputSpec("path", size, size, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    return TrainSpec(**given, augment=augment, input=pixels)


def _tabular(raw: Spec) -> tuple[Spec, dict[str, bool]]:
    """The fields of a `TabularSpec`, and those of `ColumnChoices`; whatever is neither is a knob."""
    own: Spec = {name: raw[name] for name in _OF_A_TRIAL if name in raw}
    choices: dict[str, bool] = {name: bool(raw[name]) for name in _CHOICES if name in raw}
    told = (*own, *choices, *_NO_KNOBS)
    knobs = {name: value for name, value in raw.items() if name not in told}
    return own | {"knobs": knobs}, choices
