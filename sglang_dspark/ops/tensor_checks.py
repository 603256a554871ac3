"""Contracts of tensors, raised as what was expected, what was found, and what to do. Nothing here reads a value."""

from __future__ import annotations

import torch


def check_tensor(
    name: str,  # with its op in front, e.g. "qk_norm_rope qkv"
    tensor: torch.Tensor,  # [rows, ...]: any row stride, each row dense
    shape: tuple[int | None, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Raise ValueError unless the tensor has this dtype, device and shape (None: any) and dense rows."""
    wrong = []
    if tensor.device != device:
        wrong.append(f"expected device {device}, found {tensor.device}")
    if tensor.dtype != dtype:
        wrong.append(f"expected dtype {dtype}, found {tensor.dtype}")
    found = tuple(tensor.shape)
    if len(found) != len(shape) or any(want not in (None, size) for want, size in zip(shape, found, strict=True)):
        wrong.append(f"expected shape {_shape(shape)}, found {_shape(found)}")
    elif not _rows_are_dense(tensor):
        wrong.append(f"expected dense rows, found strides {tensor.stride()} for shape {_shape(found)}")
    if wrong:
        raise ValueError(f"{name}: {'; '.join(wrong)}: pass a tensor that matches the spec")


def check_vector(
    name: str,
    tensor: torch.Tensor,  # [length]
    length: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """The same for a vector, which must be contiguous."""
    check_tensor(name, tensor, (length,), dtype, device)
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: expected a contiguous vector, found stride {tensor.stride(0)}: copy it")


def check_one_of(name: str, found: object, known: tuple[object, ...]) -> None:
    """Raise ValueError unless the value is one of the known ones."""
    if found not in known:
        raise ValueError(f"{name}: found {found}; known are {', '.join(str(one) for one in known)}")


def _rows_are_dense(tensor: torch.Tensor) -> bool:
    # A dimension of size 1 is never stepped over, so its stride may be anything.
    step = 1
    for size, stride in zip(reversed(tensor.shape[1:]), reversed(tensor.stride()[1:]), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _shape(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"
