"""The public wire: Open Inference Protocol v2, as bytes.

Owns the format alone; knows no transport, no function, no error policy. Standard library only: it runs
inside database backends. The server imports it too.
"""

from ml_udf.oip.messages import (
    HEADER_LENGTH,
    InferRequest,
    InferResponse,
    RequestedOutput,
    ResponseTemplate,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from ml_udf.oip.request_template import RequestTemplate
from ml_udf.oip.tensor import Tensor, WireError, pack_bytes

__all__ = [
    "HEADER_LENGTH",
    "InferRequest",
    "InferResponse",
    "RequestTemplate",
    "RequestedOutput",
    "ResponseTemplate",
    "Tensor",
    "WireError",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "pack_bytes",
]
