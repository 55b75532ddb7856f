"""What a package's build does beside packing: the modules in C are compiled, where that can be done.

Where it cannot, the package is a pure one, and what is written in Python serves in their place.
`ML_UDF_PURE=1` leaves them out.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Extensions(BuildHookInterface[Any]):
    """Compiles what server/extensions.py names; never fails for want of a compiler."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling."""
        if os.environ.get("ML_UDF_PURE"):
            self.app.display_info("ml_udf: without modules in C, as ML_UDF_PURE asks for")
            return
        name = "ml_udf_extensions"
        spec = importlib.util.spec_from_file_location(name, Path(self.root) / "server" / "extensions.py")
        assert spec is not None
        assert spec.loader is not None
        extensions = sys.modules[name] = importlib.util.module_from_spec(spec)  # its dataclass looks it up
        spec.loader.exec_module(extensions)
        for extension in extensions.EXTENSIONS:
            try:
                built = extensions.build(extension)
            except (extensions.NotBuilt, OSError) as error:
                self.app.display_warning(f"ml_udf: without {extension.title}: {error}")
                continue
            if version != "editable":
                build_data["pure_python"] = False
                build_data["infer_tag"] = True
                build_data["artifacts"].append(str(built.relative_to(self.root)))
