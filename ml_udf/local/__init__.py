"""The endpoint `local:`: an inference server's functions in the process of the caller, without a server.

    local:/path/to/home?media_root=/photos&media_root=/more&device=cpu&threads=2

reads the same home folder that a server keeps and answers the same protocol through the same seam
(`ml_udf.client.transport.Transport`), with `gpu_worker`'s own engine. The one door of `ml_udf` to the
worker's code.
"""

from ml_udf.local.transport import LocalTransport

__all__ = ["LocalTransport"]
