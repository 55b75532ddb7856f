"""What a package's build does beside packing: the native front is compiled, where that can be done.

Where it cannot, the package is a pure one and the Python front serves. `ML_UDF_PURE=1` leaves it out.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeFront(BuildHookInterface[Any]):
    """Compiles server/http/native; never fails for want of a compiler."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling."""
        folder = Path(self.root) / "server" / "http" / "native"
        spec = importlib.util.spec_from_file_location("native_front_build", folder / "build.py")
        assert spec is not None
        assert spec.loader is not None
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        if os.environ.get("ML_UDF_PURE"):
            self.app.display_info("ml_udf: without the native front, as ML_UDF_PURE asks for")
            return
        try:
            built = build.build()
        except (build.NotBuilt, OSError) as error:
            self.app.display_warning(f"ml_udf: without the native front: {error}")
            return
        if version != "editable":
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["artifacts"].append(str(built.relative_to(self.root)))
