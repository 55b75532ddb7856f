"""A tokenizer.json, read by the library that writes it: texts → numbers of tokens.

The file holds a vocabulary and rules, and no code. Knows no model.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.regular import read_regular
from gpu_worker.networks.extras import required

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

__all__ = ["TextRules", "TextTokenizer", "read_tokenizer"]

# What a tokenizer takes of memory for each byte of its file: 9 of wordllama's, 1.8 MB of byte pairs.
_BYTES_IN_MEMORY = 9
_MOST_BYTES = 256 << 20  # ten times the largest that are known, of 250,000 tokens


@dataclass(frozen=True, slots=True)
class TextRules:
    """What is done to a text before it is tokens.

    most_tokens: of a text, those of the special ones among them; 0 = all. most_characters: the same for what
    the tokenizer is shown at all. prefix: before each text, such as "query: ". special: whether the
    tokenizer's own beginning and end are added.
    """

    most_tokens: int = 0
    most_characters: int = 0
    prefix: str = ""
    lower_case: bool = False
    special: bool = True


class TextTokenizer:
    """`tokenizer` is changed in place: it cuts as `rules` say, and pads nothing. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, rules: TextRules, file_bytes: int = 0) -> None:
        self._tokenizer = tokenizer
        self._rules = rules
        self.most_tokens = rules.most_tokens
        tokenizer.no_padding()
        if rules.most_tokens:
            tokenizer.enable_truncation(rules.most_tokens)
        else:
            tokenizer.no_truncation()
        self.vocabulary: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self.resident_bytes = file_bytes * _BYTES_IN_MEMORY

    def encode(self, rows: Sequence[bytes]) -> list[Encoding]:
        """The tokens of each text in UTF-8."""
        rules = self._rules
        texts = [row.decode("utf-8", "replace") for row in rows]
        if rules.most_characters:
            texts = [text[: rules.most_characters] for text in texts]
        if rules.lower_case:
            texts = [text.lower() for text in texts]
        if rules.prefix:
            texts = [rules.prefix + text for text in texts]
        found: list[Encoding] = self._tokenizer.encode_batch_fast(texts, add_special_tokens=rules.special)
        return found


def read_tokenizer(path: str, rules: TextRules) -> TextTokenizer:
    """The tokenizer of a file. Raises `ModelUnusable`."""
    # Its own threads would wait for cores that other passes have: the engine runs pieces side by side.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    tokenizers = required("tokenizers", "embeddings")
    try:
        content = read_regular(path, _MOST_BYTES)
    except ValueError as exc:
        raise ModelUnusable(f"the tokenizer {exc}") from exc
    try:
        found = tokenizers.Tokenizer.from_buffer(content)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as exc:  # what its Rust panics with is no Exception
        raise ModelUnusable(f"{path} is no tokenizer that 'tokenizers' reads: {exc}") from exc
    return TextTokenizer(found, rules, len(content))
