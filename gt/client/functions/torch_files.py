"""Files in the format of torch.save: read without running any of their code, and written without torch.

Law 1: reading calls no function and no class that the file names. A name in the file becomes a description (`_Named`),
       a description of a tensor (`_Stored`), or one of a few values of Python and NumPy; what they describe is made
       from the finished object, at its end. Anything else raises. Of a module its class may be named, if that is wanted
       (whole_modules.py).
Law 2: offsets and strides are checked against the data before anything is read.

Both formats of torch are read: archives (`data.pkl` and a file per storage; since torch 1.6) and the older one, a row
of pickles. Archives are written. Of a path, data is mapped and not copied.
"""

from __future__ import annotations

import argparse
import io
import os
import pickle
import zipfile
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from gt import dtypes
from gt.client.compat.devices import device
from gt.client.functions.safetensors import whole_file
from gt.client.functions.whole_modules import OwnModules, is_module
from gt.client.tensor import Parameter, Tensor, own
from gt.dtypes import DType
from gt.errors import ArgumentError, GTError
from gt.program import Size

#: torch's names of storages by those of dtypes. Other types are stored as bytes.
_STORAGES = {
    "float64": "DoubleStorage", "float32": "FloatStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage",
    "int64": "LongStorage", "int32": "IntStorage", "int16": "ShortStorage", "int8": "CharStorage",
    "uint8": "ByteStorage", "bool": "BoolStorage", "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
}  # fmt: skip
_STORED_AS = {storage: name for name, storage in _STORAGES.items()}
_MAGIC = 0x1950A86A20F9469CFC6C  #: The first pickle of a file in the older format.

#: Types of Python that a file may name.
_BUILTINS = (set, frozenset, complex, bytearray, slice, object, list, tuple, dict, int, float, str, bool)

#: Classes that a file may contain, by their names in it; see `gt.serialization.add_safe_globals`.
SAFE: dict[str, Any] = {}

#: Makes a tensor of an array; it is given the tensor's name in the object.
Make = Callable[[str, "np.ndarray[Any, Any]"], Tensor]


# --- what a file describes ---------------------------------------------------------------------------


class _Named:
    """Something that the file names. Each name is a class of its own, as pickles need one; an instance is what the name
    is called with."""

    name = ""
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> _Named:
        made = object.__new__(cls)
        made.args, made.state = args, None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _named(name: str) -> Any:
    return type("_Named", (_Named,), {"name": name})


@dataclass
class _Storage:
    """The data of one or more tensors, in one piece."""

    dtype: str  #: "" for bytes, whose type the tensor knows.
    key: str
    count: int


@dataclass(eq=False)
class _Stored:
    """A tensor, as a part of a storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool = False
    parameter: bool = False
    dtype: str = ""


class _Unpickler(pickle.Unpickler):
    """Reads the structure of an object. It finds descriptions where a pickle asks for functions and classes."""

    def __init__(self, file: Any, path: Any, safe: Mapping[str, Any]) -> None:
        super().__init__(file, encoding="utf-8")
        self._path, self._safe = path, safe
        rebuild = dict.fromkeys(("_rebuild_tensor", "_rebuild_tensor_v2"), self._tensor)
        self._known: dict[str, Any] = {f"torch._utils.{name}": f for name, f in rebuild.items()} | {
            "torch._utils._rebuild_tensor_v3": self._typed,
            "torch._utils._rebuild_parameter": self._parameter,
            "torch._utils._rebuild_parameter_with_state": self._parameter,
            "torch._tensor._rebuild_from_type_v2": self._from_type,
            "collections.OrderedDict": OrderedDict,
            "collections.defaultdict": lambda factory=None, *args: defaultdict(
                factory if factory in _BUILTINS else None, *args
            ),
            "collections.Counter": dict,
            "_codecs.encode": lambda text, encoding: text.encode("latin1"),
            "copyreg._reconstructor": lambda kind, base, state: kind(),
        }
        for module in ("builtins", "__builtin__"):
            self._known |= {f"{module}.{k.__name__}": k for k in _BUILTINS}
        for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            self._known |= {
                f"{module}._reconstruct": lambda *_: np.ndarray.__new__(np.ndarray, (0,), "b"),
                f"{module}.scalar": _numpy_scalar,
            }
        self._known["numpy.dtype"] = lambda text, *_: np.dtype(str(text), copy=True)
        self._known["numpy.ndarray"] = _named("numpy.ndarray")

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        known = self._known.get(full)
        if known is not None:
            return known
        inside = module in ("torch", "torch.storage", "torch.cuda") and (
            name.endswith("Storage") or name in ("Size", "device", "Tensor") or name in dtypes.BY_NAME
        )
        if inside or full in ("argparse.Namespace", "torch.nn.parameter.Parameter", "torch.serialization._get_layout"):
            return self._known.setdefault(full, _named(full))
        if full in self._safe:
            return self._known.setdefault(full, _named(full))
        if full in OwnModules({}):
            raise ArgumentError(f"load: {self._path} contains a module, {full}; pass weights_only=False")
        raise ArgumentError(
            f"load: {self._path} contains {full}, which is not a tensor or a plain value; files are never executed. If "
            f"it only holds values, allow it: gt.serialization.add_safe_globals([{name}])"
        )

    def persistent_load(self, pid: Any) -> Any:
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] not in ("storage", b"storage"):
            raise ArgumentError(f"load: {self._path} refers to something that is not a tensor's data")
        _, kind, key, _, count, *_ = pid
        name = getattr(kind, "name", "").rsplit(".", 1)[-1]
        if name != "UntypedStorage" and name not in _STORED_AS:
            raise ArgumentError(f"load: {self._path} contains a storage of an unknown type: {name}")
        return _Storage(_STORED_AS.get(name, ""), str(key), int(count))

    def _tensor(self, storage: Any, offset: Any, shape: Any, strides: Any, grad: Any = False, *_: Any) -> _Stored:
        if not isinstance(storage, _Storage):
            raise ArgumentError(f"load: {self._path} contains a tensor without data")
        return _Stored(storage, int(offset), tuple(shape), tuple(strides), bool(grad), False, storage.dtype)

    def _typed(
        self, storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, *_: Any
    ) -> Any:
        made = self._tensor(storage, offset, shape, strides, grad)
        made.dtype = getattr(dtype, "name", "").rsplit(".", 1)[-1]
        return made

    def _parameter(self, data: Any, requires_grad: Any = True, *_: Any) -> Any:
        if not isinstance(data, _Stored):
            raise ArgumentError(f"load: {self._path} contains a parameter without data")
        data.parameter, data.requires_grad = True, bool(requires_grad)
        return data

    def _from_type(self, function: Any, kind: Any, args: Any, state: Any) -> Any:
        return function(*args)  # one of those above: find_class gave it


def _numpy_scalar(kind: Any, data: Any = b"") -> Any:
    if not isinstance(kind, np.dtype) or kind.hasobject:
        raise ArgumentError(f"load: expected a NumPy number of a plain dtype, got {kind!r:.100}")
    return np.frombuffer(data if isinstance(data, bytes) else str(data).encode("latin1"), kind)[0]


# --- reading -----------------------------------------------------------------------------------------


def read(file: IO[bytes], path: Any, make: Make, modules: bool = False) -> Any:
    """The object in a file, which may be a module."""
    safe: Mapping[str, Any] = OwnModules(SAFE) if modules else SAFE
    start = file.tell()
    first = file.read(4)
    file.seek(start)
    try:
        if first == b"PK\x03\x04":
            return _read_archive(file, path, make, safe)
        return _read_older(file, path, make, safe)
    except GTError:
        raise
    except (pickle.UnpicklingError, zipfile.BadZipFile, EOFError, ValueError, KeyError, TypeError, AttributeError,
            IndexError, OverflowError, RecursionError, NotImplementedError) as e:  # fmt: skip
        raise ArgumentError(f"load: {path} is not a valid file of torch.save: {e}") from None


def _read_archive(file: IO[bytes], path: Any, make: Make, safe: Mapping[str, Any]) -> Any:
    with zipfile.ZipFile(file) as archive:
        entries = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        if "data.pkl" not in entries:
            raise ArgumentError(
                f"load: {path} is a zip archive, but not one of torch.save; torch.jit archives hold code"
            )
        if "byteorder" in entries and archive.read(entries["byteorder"]) != b"little":
            raise ArgumentError(f"load: {path} was written on a machine with another byte order")
        form = _Unpickler(io.BytesIO(archive.read(entries["data.pkl"])), path, safe).load()

        def data(storage: _Storage) -> Any:
            info = entries[f"data/{storage.key}"]
            if info.compress_type == zipfile.ZIP_STORED and isinstance(file, io.BufferedReader):
                return _mapped(file, info)
            return np.frombuffer(archive.read(info), np.uint8)

        return _Finished(data, make, path, safe)(form, "")


def _mapped(file: io.BufferedReader, info: zipfile.ZipInfo) -> Any:
    """The bytes of a file in an archive, of which only what is used is read."""
    file.seek(info.header_offset)
    head = file.read(30)
    at = info.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    if not info.file_size:
        return np.empty(0, np.uint8)
    if head[:4] != b"PK\x03\x04" or at + info.file_size > os.fstat(file.fileno()).st_size:
        raise ArgumentError(f"load: {file.name}: {info.filename} is outside the file")
    return np.memmap(file, np.uint8, "r", at, (info.file_size,))


def _read_older(file: IO[bytes], path: Any, make: Make, safe: Mapping[str, Any]) -> Any:
    if _Unpickler(file, path, safe).load() != _MAGIC:
        raise ArgumentError(f"load: {path} is not a file of torch.save")
    for _ in range(2):  # the protocol, and sizes of the machine that wrote it
        _Unpickler(file, path, safe).load()
    form = _Unpickler(file, path, safe).load()
    kinds = {s.key: s for s in _storages(form)}
    found: dict[str, Any] = {}
    for key in _Unpickler(file, path, safe).load():
        count = int.from_bytes(file.read(8), "little")
        storage = kinds.get(str(key))
        if storage is None or storage.count != count:
            raise ArgumentError(f"load: {path}: the data of a tensor has the wrong size")
        size = count * (dtypes.BY_NAME[storage.dtype].itemsize if storage.dtype else 1)
        found[str(key)] = np.frombuffer(file.read(size), np.uint8)
    return _Finished(lambda storage: found[storage.key], make, path, safe)(form, "")


def _storages(form: Any) -> Iterator[_Storage]:
    """The storages that an object mentions."""
    seen: set[int] = set()
    waiting = [form]
    while waiting:
        x = waiting.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, _Stored):
            yield x.storage
        elif isinstance(x, dict):
            waiting += [*x.keys(), *x.values()]
        elif isinstance(x, (list, tuple, set, frozenset)):
            waiting += x
        elif isinstance(x, _Named):
            waiting += [x.args, x.state]


class _Finished:
    """Makes the tensors and values that a description stands for."""

    def __init__(self, data: Callable[[_Storage], Any], make: Make, path: Any, safe: Mapping[str, Any]) -> None:
        self._data, self._make, self._path, self._safe = data, make, path, safe
        self._done: dict[int, Any] = {}  #: What was made, by the identity of its description.
        self._tensors: dict[Any, Tensor] = {}  #: Tensors by the data that they show: two names of one share memory.
        self._keep: list[Any] = []  #: Descriptions stay alive, so that identities do.

    def __call__(self, x: Any, name: str) -> Any:
        kind = type(x)
        if kind in (int, float, str, bool, bytes, complex, type(None)):
            return x
        if id(x) in self._done:
            return self._done[id(x)]
        self._keep.append(x)
        made = self._new(x, name)
        self._done[id(x)] = made
        return made

    def _new(self, x: Any, name: str) -> Any:
        below = f"{name}." if name else ""
        if isinstance(x, dict):
            made: Any = OrderedDict() if isinstance(x, OrderedDict) else {}
            if isinstance(x, defaultdict):
                made = defaultdict(x.default_factory)
            self._done[id(x)] = made
            for key, value in x.items():
                made[self(key, name)] = self(value, f"{below}{key}")
            if isinstance(x, OrderedDict):
                vars(made).update({k: self(v, name) for k, v in vars(x).items()})  # `_metadata`
            return made
        if isinstance(x, list):
            made = self._done[id(x)] = []
            made += [self(y, f"{below}{i}") for i, y in enumerate(x)]
            return made
        if isinstance(x, (tuple, set, frozenset)):
            return type(x)([self(y, f"{below}{i}") for i, y in enumerate(x)])
        if isinstance(x, _Stored):
            return self._tensor(x, name or "tensor")
        if isinstance(x, _Named):
            return self._named(x, name)
        if isinstance(x, type) and issubclass(x, _Named):
            short = x.name.rsplit(".", 1)[-1]
            return dtypes.BY_NAME[short] if short in dtypes.BY_NAME else self._safe.get(x.name, x.name)
        if isinstance(x, (np.ndarray, np.generic, np.dtype, slice, bytearray)) or x in _BUILTINS:
            return x
        raise ArgumentError(f"load: {self._path} contains a {type(x).__name__}, which is not a plain value")

    def _named(self, x: _Named, name: str) -> Any:
        args = [self(a, name) for a in x.args]
        if x.name == "torch.Size":
            return Size(*args)
        if x.name == "torch.device":
            return device(*args)
        if x.name in self._safe:
            kind = self._safe[x.name]
            if x.name not in SAFE:
                return self._module(kind, x, name)
            made = kind(*args) if x.state is None else kind.__new__(kind, *args)
        elif x.name == "argparse.Namespace":
            made = argparse.Namespace()
        else:
            raise ArgumentError(f"load: {self._path} contains a {x.name}, which is not a plain value")
        state = self(x.state, name)
        if hasattr(type(made), "__setstate__"):
            made.__setstate__(state)
        elif isinstance(state, dict):
            vars(made).update(state)
        return made

    def _module(self, kind: Any, x: _Named, name: str) -> Any:
        """A module, made of its attributes. No function is called."""
        if x.args or not isinstance(kind, type) or not isinstance(x.state, dict):
            raise ArgumentError(f"load: {self._path} calls {x.name}; files are never executed")
        made: Any = object.__new__(kind)
        self._done[id(x)] = made
        vars(made).update(self(x.state, name))
        return made

    def _tensor(self, x: _Stored, name: str) -> Tensor:
        same = x.storage.key, x.offset, x.shape, x.strides, x.dtype
        known = self._tensors.get(same)
        if known is None:
            known = self._tensors[same] = self._make(name, self._array(x, name))
        else:
            known = known.detach()
        if x.parameter:
            return Parameter(known, x.requires_grad)
        return known.requires_grad_() if x.requires_grad else known

    def _array(self, x: _Stored, name: str) -> Any:
        kind = dtypes.BY_NAME.get(x.dtype)
        if kind is None:
            raise ArgumentError(f"load: {name} has the dtype {x.dtype!r}, which GT does not have")
        data = self._data(x.storage)
        whole = data[: data.nbytes // kind.itemsize * kind.itemsize].view(kind.numpy)
        sizes = [int(n) for n in x.shape]
        steps = [int(s) for s in x.strides]
        last = x.offset + sum((n - 1) * s for n, s in zip(sizes, steps, strict=True))
        if min([*sizes, *steps, x.offset], default=0) < 0 or (0 not in sizes and last >= whole.size):
            raise ArgumentError(f"load: {self._path}: the data of {name} is outside the file or has the wrong size")
        if 0 in sizes:
            return np.empty(sizes, kind.numpy)
        return np.lib.stride_tricks.as_strided(whole[x.offset :], sizes, [s * kind.itemsize for s in steps])


# --- writing -----------------------------------------------------------------------------------------


class _Global:
    """A function or class of torch's, by name, as a pickle refers to it."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self) -> None:  # a pickle's function must be callable
        raise NotImplementedError


class _Data:
    """The data of a tensor that is written."""

    def __init__(self, key: str, dtype: DType, count: int) -> None:
        self.key, self.dtype, self.count = key, dtype, count


#: The pickler written in Python: one can tell it how to write a name.
_Python: Any = pickle._Pickler


class _Pickler(_Python):  # type: ignore[misc]  # its methods are not in the type stubs
    """Writes the structure of an object; the tensors are collected."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, 2)
        self.tensors: list[Any] = []
        self._globals: dict[tuple[str, str], _Global] = {}
        self._storages: dict[int, _Data] = {}

    def persistent_id(self, x: Any) -> Any:
        if not isinstance(x, _Data):
            return None
        storage = _STORAGES.get(x.dtype.name)
        kind = self._global("torch", storage) if storage else self._global("torch.storage", "UntypedStorage")
        return "storage", kind, x.key, "cpu", x.count if storage else x.count * x.dtype.itemsize

    def reducer_override(self, x: Any) -> Any:
        x = own(x)
        if isinstance(x, Tensor):
            return self._tensor(x)
        if isinstance(x, Size):
            return self._global("torch", "Size"), (tuple(x),)
        if isinstance(x, device):
            return self._global("torch", "device"), (str(x),)
        if hasattr(x, "state_dict") and not isinstance(x, type) and not is_module(x):
            raise ArgumentError(f"save: the object contains a {type(x).__name__}; save its state_dict()")
        return NotImplemented

    def _global(self, module: str, name: str) -> _Global:
        return self._globals.setdefault((module, name), _Global(module, name))

    def _tensor(self, x: Any) -> Any:
        grad = bool(x.requires_grad)
        none: OrderedDict[str, Any] = OrderedDict()  # hooks
        if isinstance(x, Parameter):
            return self._global("torch._utils", "_rebuild_parameter"), (x.detach(), grad, none)
        data = self._storages.get(id(x))
        if data is None:
            data = self._storages[id(x)] = _Data(str(len(self.tensors)), x.dtype, x.numel())
            self.tensors.append(x)
        steps = [1]
        for n in x.shape[:0:-1]:
            steps.append(steps[-1] * max(n, 1))
        args = data, 0, tuple(x.shape), tuple(steps[::-1][: x.ndim]), grad, none
        if x.dtype.name in _STORAGES:
            return self._global("torch._utils", "_rebuild_tensor_v2"), args
        return self._global("torch._utils", "_rebuild_tensor_v3"), (*args, x.dtype)

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, DType):
            obj = self._global("torch", obj.name)
        if isinstance(obj, _Global):
            known = self.memo.get(id(obj))
            if known is not None:
                self.write(self.get(known[0]))
                return
            self.write(b"c" + f"{obj.module}\n{obj.name}\n".encode())
            self.memoize(obj)
            return
        super().save(obj, save_persistent_id)


def write(obj: Any, f: str | os.PathLike[str] | IO[bytes]) -> None:
    """Write an object as torch.save does. torch.load reads it, with weights_only if it has tensors and plain values."""
    text = io.BytesIO()
    pickler = _Pickler(text)
    try:
        pickler.dump(obj)
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        raise ArgumentError(f"save: the object contains what cannot be saved: {e}") from None
    whole = whole_file(Path(f)) if isinstance(f, (str, os.PathLike)) else nullcontext(f)
    with whole as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", text.getvalue())
        archive.writestr("archive/byteorder", "little")
        for i, tensor in enumerate(pickler.tensors):
            array = np.ascontiguousarray(tensor.detach().numpy())
            with archive.open(zipfile.ZipInfo(f"archive/data/{i}"), "w", force_zip64=array.nbytes > 1 << 31) as part:
                part.write(array.reshape(-1).view(np.uint8).data)
        archive.writestr("archive/version", "3\n")
