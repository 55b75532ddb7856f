"""What to do about an error, by its code: one sentence for who looks at a page. Pure."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["hint_of"]

_HINTS: Mapping[str, str] = {
    "bad_option": "An option cannot be used; the message says which.",
    "cancelled": "Who asked went away before the answer came.",
    "deadline_exceeded": "The deadline passed, or could not be kept: raise slo_ms, or ask fewer members.",
    "forbidden": "The token may not do that; who made it can widen it.",
    "input_forbidden": "The path lies outside the media roots: start the server with --media-root.",
    "input_invalid": "The value is empty, or is no valid text: look at what the column holds.",
    "input_not_found": "There is no such file on the server's machine: mend the path, or upload the file.",
    "input_too_large": "It is over a limit of the server's: see --max-input-bytes, --max-pixels.",
    "input_undecodable": "It is no JPEG or PNG, or it is damaged: open it elsewhere and save it anew.",
    "internal": "A fault of the server's: its log holds the cause.",
    "no_confident_answer": "No answer is sure enough: lower min_confidence, or give the function a default.",
    "no_space": "The server's disk is full; nothing was changed.",
    "overloaded": "More rows wait than may: send fewer at a time, add workers, or wait longer.",
    "remote_invalid": "A model behind another server answered what cannot be used.",
    "remote_unavailable": "A model behind another server cannot be asked: look at its endpoint.",
    "unauthorized": "The token is missing or counts no more.",
    "unknown_function": "A name was asked for that is not served: see the list of functions.",
    "unsupported": "A part of the protocol that this server does not have.",
    "version_gone": "A statement asked for a version that is served no more: run it again.",
    "worker_lost": "A worker died twice under the same rows: its last error stands at the workers.",
}


def hint_of(code: str) -> str:
    """What to do; "" where nothing is known."""
    return _HINTS.get(code, "")
