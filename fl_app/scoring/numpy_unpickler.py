"""Reads pickles of plain float32 numpy arrays, and nothing else.

The only file that may import `pickle`. None of numpy's own functions is reachable from the stream: the three names that such
a pickle mentions stand for the small classes below, which hold shape and bytes until `arrays` turns them into an array.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Nested = dict[str, "Nested | NDArray[np.float32]"]


class _Float32:
    """Stands for numpy.dtype; float32 in either byte order is all there is."""

    def __init__(self, code: str, *_: object) -> None:
        if code != "f4":
            raise pickle.UnpicklingError(f"an array of type {code!r}; only float32 is read")
        self.order = "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] not in ("<", ">"):
            raise pickle.UnpicklingError(f"the byte order {state[1]!r}")
        self.order = state[1]


class _Array:
    """Stands for an array under construction; its state is (version, shape, type, column-major, bytes)."""

    def __init__(self, *_: object) -> None:
        self.value: NDArray[np.float32] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, column_major, raw = state
        if not isinstance(kind, _Float32) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array whose content is not plain bytes")
        flat = np.frombuffer(raw, np.dtype(f"{kind.order}f4")).astype(np.float32)
        self.value = flat.reshape(shape, order="F" if column_major else "C")


class _Unpickler(pickle.Unpickler):
    _allowed = {  # noqa: RUF012 - a constant
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
        ("numpy", "ndarray"): None,  # only an argument of _reconstruct
        ("numpy", "dtype"): _Float32,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not a numpy array")
        return self._allowed[module, name]


def _plain(node: object) -> Any:
    if isinstance(node, dict) and all(isinstance(key, str) for key in node):
        return {key: _plain(value) for key, value in node.items()}
    if isinstance(node, _Array) and node.value is not None:
        return node.value
    raise pickle.UnpicklingError(f"it holds a {type(node).__name__} where only dictionaries and arrays are read")


def arrays(path: Path) -> Nested:
    """The nested dictionaries of float32 arrays in a pickle file; ValueError if there is anything else in it."""
    with path.open("rb") as stream:
        try:
            found: Nested = _plain(_Unpickler(stream).load())
        except Exception as error:  # a hostile stream may fail in any way; it has reached nothing but the classes above
            raise ValueError(f"{path.name} is refused: {error}") from error
    return found
