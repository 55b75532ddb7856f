"""Static word embeddings as a `Network`: a text is the mean of its tokens' vectors, looked up in a table.

What model2vec, wordllama and sentence-transformers' StaticEmbedding write. The table is a tensor of a
safetensors file; beside it may lie a weight for each token, and which line of the table each token has
(model2vec's vocabulary quantization).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.model_files.regular import open_regular
from gpu_worker.networks.network import Floats, Inputs, IsCancelled
from gpu_worker.networks.parts import in_parts_that_fit
from gpu_worker.networks.piece_sizes import LARGEST_LIGHT_PIECE_ROWS
from gpu_worker.networks.text_tokenizer import TextRules, TextTokenizer, read_tokenizer

__all__ = ["StaticEmbedding", "TokenTable", "load_static", "read_table"]

_MOST_GATHERED = 1 << 16  # vectors of tokens at once: of a text of a million words not all lie side by side
_GATHERED_TOGETHER = (
    1 << 10
)  # of several texts: what they take (1 MB of 256 numbers each) stays in the caches


class TokenTable:
    """vectors: [lines, width]. lines: of each token, its line; None where they are in the same order.

    weights: of each token. Raises `ValueError` where they do not fit together.
    """

    def __init__(
        self,
        vectors: NDArray[np.generic],
        lines: NDArray[np.generic] | None = None,
        weights: NDArray[np.generic] | None = None,
    ) -> None:
        if vectors.ndim != 2 or not vectors.size:
            raise ValueError(f"the table has the shape {list(vectors.shape)}, and [tokens, width] is needed")
        self.vectors: Floats = np.ascontiguousarray(vectors, np.float32)
        self.lines = None if lines is None else np.asarray(lines, np.intp)
        self.weights = None if weights is None else np.asarray(weights, np.float32)
        if self.lines is not None and not (
            self.lines.ndim == 1
            and len(self.lines)
            and self.lines.min() >= 0
            and self.lines.max() < len(self.vectors)
        ):
            raise ValueError(f"its mapping names lines that the table of {len(self.vectors)} does not have")
        self.tokens = len(self.vectors) if self.lines is None else len(self.lines)
        if self.weights is not None and self.weights.shape != (self.tokens,):
            raise ValueError(f"it has {list(self.weights.shape)} weights for {self.tokens} tokens")

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return int(self.vectors.shape[1])

    @property
    def nbytes(self) -> int:
        """What it takes of memory."""
        return sum(part.nbytes for part in (self.vectors, self.lines, self.weights) if part is not None)

    def means(self, texts: Sequence[Sequence[int]]) -> Floats:
        """[n, width]: of the weighted vectors of each text's tokens; 0 of a text that has none.

        Texts of one length are gathered and summed by one call each: the interpreter's lock is taken as
        seldom as can be, and a sum is the same whatever stands beside it.
        """
        found = np.zeros((len(texts), self.width), np.float32)
        places_by_length: dict[int, list[int]] = {}
        for place, tokens in enumerate(texts):
            places_by_length.setdefault(len(tokens), []).append(place)
        places_by_length.pop(0, None)
        for length, places in places_by_length.items():
            most = max(1, _GATHERED_TOGETHER // length)
            for start in range(0, len(places), most):
                some = places[start : start + most]
                total = self._total(np.array([texts[place] for place in some], np.intp))
                total /= length
                found[some] = total
        return found

    def _total(self, tokens: NDArray[np.intp]) -> Floats:
        """[n, width] of [n, length]."""
        total = self._sum(tokens[:, :_MOST_GATHERED])
        for start in range(_MOST_GATHERED, tokens.shape[1], _MOST_GATHERED):
            total += self._sum(tokens[:, start : start + _MOST_GATHERED])
        return total

    def _sum(self, tokens: NDArray[np.intp]) -> Floats:
        lines = tokens if self.lines is None else self.lines.take(tokens)
        vectors = self.vectors.take(lines, axis=0)
        if self.weights is not None:
            vectors *= self.weights.take(tokens)[..., np.newaxis]
        found: Floats = np.add.reduce(vectors, axis=1)
        return found


class StaticEmbedding:
    """normalise: to length 1; a text without any token is all 0. skips: a token that counts for nothing.

    Raises `ModelUnusable` where the tokenizer has more tokens than the table.
    """

    forms = frozenset(("text",))
    pixels: tuple[int, int] | None = None
    cuttable = True
    largest_piece = LARGEST_LIGHT_PIECE_ROWS

    def __init__(
        self,
        table: TokenTable,
        tokenizer: TextTokenizer,
        *,
        normalise: bool = False,
        skips: int | None = None,
    ) -> None:
        if tokenizer.vocabulary > table.tokens:
            raise ModelUnusable(
                f"the tokenizer has {tokenizer.vocabulary} tokens, and the table vectors for {table.tokens}: "
                "they are not of one model"
            )
        self._table = table
        self._tokenizer = tokenizer
        self._normalise = normalise
        self._skips = skips
        self.features_width = table.width

    @property
    def resident_bytes(self) -> int:
        """The table as it is computed with, and the tokenizer."""
        return self._table.nbytes + self._tokenizer.resident_bytes

    def warm_up(self, rows: int) -> Floats:
        """The features of `rows` short texts."""
        return self._embedded([b"warm up"] * rows)

    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """It has no classes: [n, 0]."""
        return np.zeros((len(inputs), 0), np.float32)

    def features(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, features_width] of texts in UTF-8."""

        def whole(part: Inputs) -> Floats:
            return self._embedded([bytes(row) for row in cast("Sequence[bytes]", part)])

        return in_parts_that_fit(whole, inputs, is_cancelled, "cpu")

    def _embedded(self, rows: Sequence[bytes]) -> Floats:
        texts: list[list[int]] = [encoding.ids for encoding in self._tokenizer.encode(rows)]
        if self._skips is not None:
            texts = [[token for token in tokens if token != self._skips] for tokens in texts]
        found = self._table.means(texts)
        if self._normalise:
            found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-32)
        return found


def load_static(
    manifest: Manifest, device: Device, *, content: bytes | None, allow_import: bool
) -> StaticEmbedding:
    """The network of a model's folder; it computes on the CPU, on any device. Raises `ModelUnusable`.

    architecture_options: tensor, of the table · normalise · skips, the number of a token · characters, of a
    text at most.
    """
    options = manifest.architecture_options
    said = manifest.input.preprocess
    skips, characters = options.get("skips"), options.get("characters", 0)
    if not all(isinstance(number, int | None) for number in (skips, characters)):
        raise ModelUnusable(
            f"{manifest.directory}: 'skips' and 'characters' of 'architecture_options' must be whole numbers"
        )
    rules = TextRules(said.length, int(characters or 0), said.prefix, said.lower_case, special=False)
    return StaticEmbedding(
        read_table(manifest.path_of_weights(), str(options.get("tensor", "embeddings"))),
        read_tokenizer(manifest.path_of_role("tokenizer"), rules),
        normalise=options.get("normalise") is True,
        skips=skips,
    )


def read_table(path: str, tensor: str) -> TokenTable:
    """The table of a safetensors file: `tensor`, and `mapping` and `weights` where they are there.

    Raises `ModelUnusable`.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        with open_regular(path) as file:
            tensors = load(file.read())
    except OSError as exc:
        raise ModelUnusable(f"the weights {path} cannot be read: {exc.strerror}") from exc
    except (SafetensorError, ValueError, KeyError, TypeError) as exc:
        raise ModelUnusable(f"{path} is no safetensors file that numpy reads: {exc}") from exc
    if tensor not in tensors:
        raise ModelUnusable(f"{path} has no tensor {tensor!r}; there are {', '.join(sorted(tensors))}")
    try:
        return TokenTable(tensors[tensor], tensors.get("mapping"), tensors.get("weights"))
    except ValueError as exc:
        raise ModelUnusable(f"{path} is no table of tokens: {exc}") from exc
