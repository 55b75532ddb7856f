"""What a package's build does beside packing: it compiles the modules in C and what decides, where it can.

Where it cannot, the package is a pure one, and what is written in Python serves in their place.
`ML_UDF_PURE=1` leaves them out. What decides is compiled where `ML_UDF_WHEEL=1` asks for it, as `make wheels`
does: nobody who installs from sources shall wait for that.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Extensions(BuildHookInterface[Any]):
    """Compiles what server/extensions.py and server/compiled name; never fails for want of a compiler."""

    def dependencies(self) -> list[str]:
        """See hatchling: what compiles the core."""
        return ["mypy==2.4.1", "setuptools>=77"] if os.environ.get("ML_UDF_WHEEL") else []

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
        if os.environ.get("ML_UDF_WHEEL"):
            self._compile_core(build_data)

    def _compile_core(self, build_data: dict[str, Any]) -> None:
        """A minute's work."""
        command = [sys.executable, "-m", "server.compiled.build"]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        if done.returncode:
            self.app.display_warning(f"ml_udf: {done.stderr.strip()}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append("server/compiled/made/")
