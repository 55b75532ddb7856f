"""A model of MLServer's own kind, text in and text out; runs in MLServer's environment, not in ours."""

from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Upper(MLModel):
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        texts = StringCodec.decode_input(payload.inputs[0])
        answer = StringCodec.encode_output("out", [text.upper() for text in texts])
        return InferenceResponse(model_name=self.name, outputs=[answer])
