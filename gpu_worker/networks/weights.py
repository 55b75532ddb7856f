"""A module's tensors as views of one piece of memory, so that a model is moved in one copy.

A layout says where each lies, of which kind its numbers are and in which order: they are copied as they will
be read. Tensors that are shared within a module are there once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.networks.precision import Verdict

__all__ = ["Layout", "attach", "gather", "is_attached", "layout_of"]

_ALIGNED = 64
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


@dataclass(frozen=True, slots=True)
class _Part:
    """One tensor: its name in the module, what it holds, where it begins."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tensors of a module lie in `nbytes`. verdict: on their precision, where one was chosen."""

    parts: tuple[_Part, ...]
    nbytes: int
    verdict: Verdict | None = None

    def to_json(self) -> dict[str, Any]:
        """For a file."""
        return {
            "parts": [[part.name, part.dtype, part.shape, part.strides, part.offset] for part in self.parts],
            "verdict": self.verdict and self.verdict.to_json(),
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any], nbytes: int) -> Layout:
        """What `to_json` said. Raises `ValueError` where a tensor would lie outside."""
        try:
            parts, verdict = told["parts"], told["verdict"]
            layout = cls(
                tuple(
                    _Part(
                        str(name), str(dtype), tuple(map(int, shape)), tuple(map(int, strides)), int(offset)
                    )
                    for name, dtype, shape, strides, offset in parts
                ),
                nbytes,
                Verdict.from_json(verdict) if verdict is not None else None,
            )
            inside = all(
                part.offset >= 0 and part.offset + _span_bytes(part) <= nbytes for part in layout.parts
            )
        except (TypeError, KeyError) as exc:
            raise ValueError(f"it is no layout of tensors: {exc!r}") from exc
        if not inside:
            raise ValueError("a tensor would lie outside of it")
        return layout


def layout_of(module: nn.Module, verdict: Verdict | None = None) -> Layout:
    """Where its tensors go, in the order of their names, each as it lies now if that is without gaps."""
    parts: list[_Part] = []
    offsets: dict[int, int] = {}
    end = 0
    for _, _, name, tensor in _tensors(module):
        dtype = str(tensor.dtype).removeprefix("torch.")
        part = _Part(name, dtype, tuple(tensor.shape), _dense_strides(tensor), offsets.get(id(tensor), end))
        parts.append(part)
        if id(tensor) not in offsets:
            offsets[id(tensor)] = end
            end += -(-_span_bytes(part) // _ALIGNED) * _ALIGNED
    return Layout(tuple(parts), end, verdict)


def gather(module: nn.Module, layout: Layout, memory: Any) -> None:  # noqa: ANN401  # a region
    """Copies the tensors of `module` to where `layout`, which is its own, says."""
    views = dict(_views(layout, _flat(memory)))
    for _, _, name, tensor in _tensors(module):
        views[name].copy_(tensor)


def attach(module: nn.Module, layout: Layout, memory: Any) -> None:  # noqa: ANN401  # a region
    """Makes the tensors of `module` views of `memory`; those without memory of their own too.

    Raises `ValueError` where it is the layout of another module.
    """
    views = dict(_views(layout, _flat(memory)))
    tensors = list(_tensors(module))
    if {name for _, _, name, _ in tensors} != views.keys():
        raise ValueError("it is the layout of another module: their tensors have other names")
    placed: dict[int, Tensor] = {}
    for holder, key, name, tensor in tensors:
        view = views[name]
        if tensor.shape != view.shape or tensor.dtype != view.dtype:
            raise ValueError(f"it is the layout of another module: {name} is {list(view.shape)} {view.dtype}")
        if not tensor.is_meta:
            tensor.data = view
        else:
            if id(tensor) not in placed:
                is_parameter = isinstance(tensor, nn.Parameter)
                placed[id(tensor)] = nn.Parameter(view, requires_grad=False) if is_parameter else view
            setattr(holder, key, placed[id(tensor)])


def is_attached(module: nn.Module, memory: Any) -> bool:  # noqa: ANN401  # a region
    """Whether all its tensors lie in `memory`: a layer may have moved its own elsewhere."""
    begin = _flat(memory).data_ptr()
    return all(
        not tensor.numel() or begin <= tensor.data_ptr() < begin + memory.nbytes
        for _, _, _, tensor in _tensors(module)
    )


def _tensors(module: nn.Module) -> Iterator[tuple[nn.Module, str, str, Tensor]]:
    """holder, its attribute, name, tensor."""
    for prefix, holder in module.named_modules():
        for key, tensor in (*holder._parameters.items(), *holder._buffers.items()):
            if tensor is not None:
                yield holder, key, f"{prefix}.{key}" if prefix else key, tensor


def _flat(memory: Any) -> Tensor:  # noqa: ANN401  # a region
    if isinstance(getattr(memory, "tensor", None), Tensor):
        found: Tensor = memory.tensor
        return found
    if not memory.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(memory.view, dtype=torch.uint8)


def _views(layout: Layout, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
    for part in layout.parts:
        dtype = _DTYPES[part.dtype]
        raw = flat[part.offset : part.offset + _span_bytes(part)]
        yield (
            part.name,
            raw.view(dtype).as_strided(part.shape, part.strides, raw.storage_offset() // dtype.itemsize),
        )


def _span_bytes(part: _Part) -> int:
    """From its first number to its last: a part is without gaps."""
    if 0 in part.shape:
        return 0
    if any(length < 0 for length in (*part.shape, *part.strides)) or len(part.shape) != len(part.strides):
        raise ValueError(f"{part.name} has the shape {part.shape} and the strides {part.strides}")
    last = sum((length - 1) * stride for length, stride in zip(part.shape, part.strides, strict=True))
    return (last + 1) * _DTYPES[part.dtype].itemsize


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    lies_densely = tensor.is_contiguous() or (
        tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    )
    return tuple(tensor.stride() if lies_densely else torch.empty(tensor.shape, device="meta").stride())
