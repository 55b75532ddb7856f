"""What makes a model a parity model (ParM, Kosaian et al., SOSP 2019): `parity` of model.json.

    parity(encoded(x₁ … xₖ)) ≈ F(x₁) + … + F(xₖ)        F: the logarithms of a model's probabilities
    answer of a late xⱼ      =  parity(…) − the others' F

Standard library only: the server reads manifests by this module too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

__all__ = ["ENCODERS", "LEAST_PROBABILITY", "MOST_K", "SUM", "TILES", "Encoder", "ParitySpec", "parity_from"]

Encoder = Literal["sum", "tiles"]
SUM: Final = "sum"
TILES: Final = "tiles"
ENCODERS: Final = (SUM, TILES)
MOST_K: Final = 4
LEAST_PROBABILITY: Final = 1e-4
"""Probabilities below it count as it, where logarithms are added: as the parity model was taught."""


@dataclass(frozen=True, slots=True)
class ParitySpec:
    """k: rows of a group · encoder: how their pictures become one: `sum`, pixel by pixel (as their mean,
    which is the sum but for a factor), or `tiles`, each made smaller and set beside the others (§4.2.3)
    """

    k: int
    encoder: Encoder

    def to_json(self) -> dict[str, Any]:
        """The `parity` of model.json."""
        return asdict(self)


def parity_from(manifest: Mapping[str, Any]) -> ParitySpec | None:
    """That of a manifest; None of a model that is none. Raises `ValueError` with the field."""
    said = manifest.get("parity")
    if said is None:
        return None
    if not isinstance(said, Mapping) or said.keys() != {"k", "encoder"}:
        raise ValueError("'parity' must be an object with 'k' and 'encoder'")
    k, encoder = said["k"], said["encoder"]
    if type(k) is not int or not 2 <= k <= MOST_K:
        raise ValueError(f"'parity.k' must be a whole number from 2 to {MOST_K}, not {str(k)[:100]!r}")
    if encoder not in ENCODERS:
        raise ValueError(f"'parity.encoder' must be one of {', '.join(ENCODERS)}, not {str(encoder)[:100]!r}")
    return ParitySpec(k, encoder)
