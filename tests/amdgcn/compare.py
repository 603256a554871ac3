"""Vector comparisons: v_cmp and v_cmpx of all relations on u32, i32, u64, i64 and f32, and v_cmp_class_f32."""

from __future__ import annotations

import numpy as np

from .registers import U32
from .vector_float import is_denormal

INTEGER_TYPES = {"u32": "u", "i32": "i", "u64": "U", "i64": "I"}
INTEGER_RELATIONS = {
    "f": lambda a, b: np.zeros(a.shape, bool),
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "ne": np.not_equal,
    "ge": np.greater_equal,
    "t": lambda a, b: np.ones(a.shape, bool),
}


def unordered(a, b):
    return np.isnan(a) | np.isnan(b)


FLOAT_RELATIONS = {
    **{name: INTEGER_RELATIONS[name] for name in ("f", "lt", "eq", "le", "gt", "ge")},
    "lg": lambda a, b: (a < b) | (a > b),
    "o": lambda a, b: ~unordered(a, b),
    "u": unordered,
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "neq": lambda a, b: ~(a == b),
    "nlt": lambda a, b: ~(a < b),
    "tru": INTEGER_RELATIONS["t"],
}


def float_class(bits, wanted):
    """Whether a float (as bits: nothing is flushed) is of one of the ten classes in the wanted mask."""
    values = bits.view(np.float32)
    negative = np.signbit(values)
    quiet = bits & U32(0x400000) != 0
    finite_classes = np.where(values == 0, 5, np.where(is_denormal(values), 4, np.where(np.isinf(values), 2, 3)))
    mirrored = np.where(negative, finite_classes, 11 - finite_classes)
    number = np.where(np.isnan(values), np.where(quiet, 1, 0), mirrored).astype(U32)
    return (wanted >> number & U32(1)).astype(bool)


COMPARISONS = {
    **{
        f"v_cmp_{relation}_{name}": (f"m:{code}{code}", function)
        for name, code in INTEGER_TYPES.items()
        for relation, function in INTEGER_RELATIONS.items()
    },
    **{f"v_cmp_{relation}_f32": ("m:ff", function) for relation, function in FLOAT_RELATIONS.items()},
    "v_cmp_class_f32": ("m:bu", float_class),
}
