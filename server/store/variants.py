"""Variants in the registry: what was measured of each. Each verb is one transaction. Blocking."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from gpu_worker.model_files.file_list import ModelFile
from server.catalog.variants import HeldOutAccuracy, Variant
from server.store.damaged import object_in, readable
from server.store.database import reading, utc
from server.store.retries import retried
from server.store.tables import ModelVariantRow

__all__ = ["VariantRepository"]


class VariantRepository:
    """Those of one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading = reading(engine)

    @retried
    def all(self) -> list[Variant]:
        """Every one, refused ones too."""
        with Session(self._reading) as session:
            order = (ModelVariantRow.model, ModelVariantRow.version, ModelVariantRow.name)
            return readable(session.scalars(select(ModelVariantRow).order_by(*order)), _variant)

    @retried
    def put(self, variant: Variant) -> None:
        """Keep it as it was measured last."""
        with Session(self._engine) as session:
            session.merge(_row(variant))
            session.commit()


def _row(variant: Variant) -> ModelVariantRow:
    return ModelVariantRow(
        model=variant.model,
        version=variant.version,
        name=variant.name,
        runtime=variant.runtime,
        precision=variant.precision,
        threads=variant.threads,
        files={"files": [file.to_json() for file in variant.files]},
        nbytes=variant.nbytes,
        resident_bytes=variant.resident_bytes,
        load_s=variant.load_s,
        profile={
            device: {str(rows): took_s for rows, took_s in points.items()}
            for device, points in variant.profile_s.items()
        },
        held_out=None if variant.held_out is None else variant.held_out.to_json(),
        refused=variant.refused,
        measured_at=datetime.fromtimestamp(variant.measured_at, UTC),
    )


def _variant(row: ModelVariantRow) -> Variant:
    whose = f"of the variant {row.name} of {row.model} version {row.version}"
    files = object_in(row.files, f"the list of files {whose}")
    profile = object_in(row.profile, f"the profile {whose}")
    held_out = None if row.held_out is None else object_in(row.held_out, f"the accuracy {whose}")
    return Variant(
        model=row.model,
        version=row.version,
        name=row.name,
        runtime=row.runtime,
        precision=row.precision,
        threads=row.threads,
        files=tuple(ModelFile(**file) for file in files["files"]),
        nbytes=row.nbytes,
        resident_bytes=row.resident_bytes,
        load_s=row.load_s,
        profile_s={
            device: {int(rows): took_s for rows, took_s in points.items()}
            for device, points in profile.items()
        },
        held_out=None if held_out is None else HeldOutAccuracy(**held_out),
        refused=row.refused,
        measured_at=utc(row.measured_at).timestamp(),
    )
