"""What servers say of functions, for tests of the client's parts."""

from __future__ import annotations

from ml_udf.client.function_info import FunctionInfo


def info_of(datatype: str = "BYTES", row_shape: tuple[int, ...] = (), *, ours: bool = True) -> FunctionInfo:
    return FunctionInfo(
        name="f",
        version="3",
        input_name="x",
        input_datatype=datatype,
        row_shape=row_shape,
        output_name="label",
        output_datatype="BYTES",
        output_width=1,
        ours=ours,
    )
