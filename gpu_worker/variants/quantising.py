"""An ONNX graph in float32 → the same in static int8: weights by channel, activations by calibrated ranges.

Static and not dynamic: dynamic quantisation covers MatMul and Gemm alone, and leaves a convolutional network
as it was. Ranges are those that calibration rows show.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable, WorkerError
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.networks.extras import required
from gpu_worker.networks.onnx_network import open_session
from gpu_worker.networks.onnx_pixels import PixelInput
from gpu_worker.variants.calibration import Calibration

__all__ = ["quantised"]


def quantised(manifest: Manifest, target: Path, rows: Calibration, device: Device) -> None:
    """Writes the graph of an ONNX model of pictures to the file `target`, in int8.

    Raises `ModelUnusable` where no row can be read, or the graph cannot be quantised.
    """
    required("onnx", "import")
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    path = manifest.path_of_weights()
    pixels = PixelInput(open_session(path, device), manifest.input, path)

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # it has no types
        def __init__(self) -> None:
            self._feeds: Iterator[dict[str, Any]] = (
                feed for batch in rows for feed, _ in pixels.feeds(batch)
            )

        def get_next(self) -> dict[str, Any] | None:
            return next(self._feeds, None)

    # It tells its own way through the root logger, of graphs that are fine.
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".quantising-") as folder:
            inferred = str(Path(folder) / "inferred.onnx")
            quant_pre_process(path, inferred, skip_symbolic_shape=True)
            quantize_static(
                inferred,
                str(target),
                Reader(),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod.MinMax,
            )
    except WorkerError:
        raise
    except Exception as exc:  # its exceptions have no common base
        if not rows.read_rows:
            raise ModelUnusable(
                f"int8 is calibrated by the dataset's training rows, and none of them can be read "
                f"({rows.skipped} tried); refresh the dataset"
            ) from exc
        raise ModelUnusable(f"{path} cannot be quantised: {exc}") from exc
    finally:
        logger.setLevel(level)
