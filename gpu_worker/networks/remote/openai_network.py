"""A model behind an OpenAI-compatible server (OpenAI, vLLM, llama.cpp, Ollama, …), as a network.

Embeddings by `POST …/embeddings`, some dozens of rows a request; all else by `POST …/chat/completions`, a row
a request, its answer held to a JSON Schema. An answer that does not keep to it is sent back once, with
what is wrong; then the row has a fault that says so.
https://platform.openai.com/docs/api-reference
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import numpy as np

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.json_schema import fault_of
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.model_files.remote_spec import RemoteSpec
from gpu_worker.networks.network import Inputs
from gpu_worker.networks.remote.asking import Try
from gpu_worker.networks.remote.exchange import Call, Connections, EndpointFailed
from gpu_worker.networks.remote.prompts import answer_schema, messages_for, parsed, read_row
from gpu_worker.networks.remote.remote_network import RemoteNetwork, one_hot

__all__ = ["OpenAINetwork"]

_JSON: Final = {"Content-Type": "application/json"}
_NO_LIST: Final = ("404", "405")  # a server need not list its models
_LEAST_SHARE: Final = 1.01  # equal shares, of the label that was said
_IMPOSSIBLE: Final = -1e6  # a logarithm of a probability, and a number that JSON may be below


class OpenAINetwork(RemoteNetwork):
    """See `RemoteNetwork`."""

    def __init__(self, manifest: Manifest, spec: RemoteSpec, connections: Connections) -> None:
        self._path = connections.endpoint.path
        super().__init__(manifest, spec, connections)
        if self.reads not in ("scores", "values", "texts", "features"):
            raise ModelUnusable(f"an OpenAI-compatible endpoint does no {manifest.task}")
        if self.reads == "features" and manifest.input.form != "text":
            raise ModelUnusable(
                f"an OpenAI-compatible endpoint makes embeddings of texts, not of {manifest.input.form}"
            )
        self._schema = answer_schema(self.reads, manifest.classes, self.picks_one, spec.schema)
        self.pixels = None  # pictures go as they are

    @property
    def rows_a_request(self) -> int:
        """See `RemoteNetwork`."""
        return self.spec.batch_rows if self.reads == "features" else 1

    def describe(self, attempt: Try) -> str:
        """See `RemoteNetwork`: the list of models, where the server has one."""
        try:
            told = self.object_of(attempt.ask(partial(Call, self.connections, "GET", f"{self._path}/models")))
        except EndpointFailed as failed:
            if not failed.unavailable or any(f"answered {status}" in failed.message for status in _NO_LIST):
                return f"{self.spec.model} at {self.url}, which lists no models"
            raise
        names = [str(each.get("id")) for each in told.get("data") or () if isinstance(each, Mapping)]
        if names and self.spec.model not in names:
            shown = ", ".join(names[:10])
            raise ModelUnusable(f"{self.url} has no model {self.spec.model!r}; it has {shown}")
        return f"{self.spec.model} at {self.url}"

    def fault_in(self, row: bytes) -> str | None:
        """See `RemoteNetwork`."""
        if self.manifest.input.form not in ("text", "row"):
            return None
        try:
            self._values(row)
        except UnicodeDecodeError:
            return "it is no UTF-8"
        except ValueError as exc:
            return f"the row cannot be read: {exc}"
        return None

    def ask_rows(self, attempt: Try, inputs: Inputs) -> Sequence[object]:
        """See `RemoteNetwork`."""
        rows = cast("Sequence[bytes]", inputs)
        return self._embed(attempt, rows) if self.reads == "features" else [self._chat(attempt, rows[0])]

    def _embed(self, attempt: Try, rows: Sequence[bytes]) -> Sequence[object]:
        texts = [bytes(row).decode() for row in rows]
        told = self._post(
            attempt, "embeddings", {"model": self.spec.model, "input": texts, "encoding_format": "float"}
        )
        data = told.get("data")
        if not isinstance(data, list) or len(data) != len(rows):
            raise self._bad(
                f"it answers {len(data) if isinstance(data, list) else 'no'} embeddings for {len(rows)} texts"
            )
        found: list[Any] = [None] * len(rows)
        for place, each in enumerate(data):
            at = each.get("index", place) if isinstance(each, Mapping) else -1
            vector = each.get("embedding") if isinstance(each, Mapping) else None
            if not isinstance(at, int) or not 0 <= at < len(rows) or not isinstance(vector, list):
                raise self._bad("its reply has an embedding that is none, or of no row")
            found[at] = self._vector(vector)
        if any(each is None for each in found):
            raise self._bad("its reply leaves out the embedding of a row")
        return found

    def _vector(self, vector: list[Any]) -> object:
        try:
            numbers = np.array(vector, np.float32)
        except (ValueError, TypeError, OverflowError):
            return self._bad("an embedding holds what is no number")
        if numbers.shape != (self.width,):
            return self._bad(f"an embedding has {numbers.size} numbers, and model.json says {self.width}")
        return numbers

    def _chat(self, attempt: Try, row: bytes) -> object:
        is_picture = self.manifest.input.form not in ("text", "row")
        values = {} if is_picture else self._values(row)
        kind = "labels" if self.reads == "scores" and not self.picks_one else self.reads
        messages = messages_for(self.spec, self.manifest, values, row if is_picture else None, kind)
        text, choice = self._completion(attempt, messages)
        fault, answer = self._fault(text)
        if fault is not None:
            messages = [
                *messages,
                {"role": "assistant", "content": text},
                {
                    "role": "user",
                    "content": f"That does not keep to the schema: {fault}. Answer again, by the schema.",
                },
            ]
            text, choice = self._completion(attempt, messages)
            fault, answer = self._fault(text)
        if fault is not None:
            shown = self.connections.hidden(text)
            raise self._bad(f"twice its answer does not keep to the schema: {fault} (it said {shown!r})")
        return self._made_of(text, answer, choice)

    def _values(self, row: bytes) -> dict[str, str]:
        return read_row(self.manifest.input.form, self.columns, row)

    def _completion(self, attempt: Try, messages: list[dict[str, Any]]) -> tuple[str, Mapping[str, Any]]:
        asked: dict[str, Any] = {
            "model": self.spec.model,
            "messages": messages,
            "max_tokens": self.spec.max_tokens,
            "stream": False,
        }
        if self.spec.temperature is not None:
            asked["temperature"] = self.spec.temperature
        if self._schema is not None:
            form = {"name": "answer", "strict": True, "schema": self._schema}
            asked["response_format"] = {"type": "json_schema", "json_schema": form}
        if self._wants_logprobs:
            asked["logprobs"] = True
        told = self._post(attempt, "chat/completions", asked)
        choices = told.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, Mapping) else None
        if not isinstance(choice, Mapping) or not isinstance(message, Mapping):
            raise self._bad("its reply has no choice with a message")
        if message.get("refusal"):
            raise self._bad(f"it refuses to answer: {self.connections.hidden(str(message['refusal']))}")
        if choice.get("finish_reason") == "length":
            raise self._bad(
                f"its answer is longer than {self.spec.max_tokens} tokens (remote.max_tokens of the model)"
            )
        if not isinstance(message.get("content"), str):
            raise self._bad("its message has no text")
        return message["content"], choice

    @property
    def _wants_logprobs(self) -> bool:
        return self.spec.logprobs and self.reads == "scores" and self.picks_one

    def _fault(self, text: str) -> tuple[str | None, Any]:
        """How an answer breaks the schema, None where it does not; and what it says."""
        if self._schema is None:
            return None, None
        try:
            answer = parsed(text)
        except ValueError as exc:
            return f"it is no JSON: {exc}", None
        return fault_of(answer, self._schema), answer

    def _made_of(self, text: str, answer: Any, choice: Mapping[str, Any]) -> object:  # noqa: ANN401  # JSON
        classes = self.manifest.classes
        if self.reads == "texts":
            return text if self._schema is None else json.dumps(answer, ensure_ascii=False)
        if self.reads == "values":
            return [float(answer["value"])]
        if not self.picks_one:
            return [float(each in answer["labels"]) for each in classes]
        label = answer["label"]
        told = _probability(text, label, choice)
        # An endpoint that does not say how sure it is, is as sure as it was found to be right.
        known = self.manifest.accuracy if self.manifest.accuracy > 1 / len(classes) else 1.0
        # However unsure it is, it is what it said: with no more than an equal share, another would answer.
        least = min(1.0, _LEAST_SHARE / len(classes))
        return one_hot(classes, label, known if told is None else max(told, least))

    def _post(self, attempt: Try, what: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        body = json.dumps(asked).encode()
        call = partial(Call, self.connections, "POST", f"{self._path}/{what}", body, _JSON)
        return self.object_of(attempt.ask(call))


def _probability(text: str, label: str, choice: Mapping[str, Any]) -> float | None:
    """How probable the tokens of the label are, one after the other; None where it is not told."""
    said = choice.get("logprobs")
    tokens = said.get("content") if isinstance(said, Mapping) else None
    if not isinstance(tokens, list):
        return None
    begin = text.rfind(json.dumps(label, ensure_ascii=False)[1:-1])
    end, at, total, met = begin + len(label), 0, 0.0, False
    for each in tokens:
        token, logprob = (
            (each.get("token"), each.get("logprob")) if isinstance(each, Mapping) else (None, None)
        )
        if not isinstance(token, str) or not isinstance(logprob, int | float) or logprob != logprob:
            return None
        if begin >= 0 and at < end and at + len(token) > begin:
            total, met = total + min(0.0, max(_IMPOSSIBLE, logprob)), True
        at += len(token)
    return math.exp(total) if met and at == len(text) else None
