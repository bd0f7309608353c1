"""Every error that users see. Each is also the Python error that torch raises in that case."""

from __future__ import annotations


class GTError(RuntimeError):
    """The base class of GT's errors; a RuntimeError, as most errors of torch are."""


class ShapeError(GTError, RuntimeError):
    """Shapes that do not fit together; raised at the line that records the op."""


class DimError(GTError, IndexError):
    """A dimension or an index that is out of range for the tensor."""


class DTypeError(GTError, TypeError):
    """A dtype, or a type of an argument, that the op does not accept."""


class ArgumentError(GTError, ValueError):
    """Any other argument that an op or a function does not accept."""


class StateError(ArgumentError, RuntimeError):
    """A state dict whose names do not match those of the module or optimizer that loads it."""


class AutogradError(GTError, RuntimeError):
    """Backward through a graph that was freed, an in-place write to a leaf, and the like."""


class ProgramError(GTError, ValueError):
    """A program that is not valid: wrong numbering, an unknown op, bad attributes."""


class FunctionError(GTError, RuntimeError):
    """A `@gt.function` did something that cannot be replayed, such as reading a value."""


class PaperError(GTError, RuntimeError):
    """A value was read on paper (`gt.on_paper`), where tensors have no data."""


class WorkerError(GTError, RuntimeError):
    """A call failed on a worker; the message carries the user's file and line."""


class OutOfMemory(WorkerError, MemoryError):
    """A call needed more memory than its worker or its session has."""


class IndexOutOfRange(WorkerError, IndexError):
    """An index tensor has a value that is out of range for the dimension it indexes."""


class LinAlgError(WorkerError):
    """A matrix that cannot be inverted, factored or solved with, because of its values."""


class LostError(WorkerError, ConnectionError):
    """The value was on a worker that is gone, or the server is gone."""


class PeerFailed(WorkerError):
    """Another worker of the same call failed, is gone, or did not answer in time."""


class ServerError(GTError, ConnectionError):
    """There is no server, it has another version, or it refused a message."""


class StartError(GTError, RuntimeError):
    """A server or worker could not be started."""


class ForkError(GTError, RuntimeError):
    """GT was used in a forked child process; the connection belongs to the parent."""


#: Errors that are sent: the message has the name, the client raises the class.
BY_NAME: dict[str, type[GTError]] = {
    c.__name__: c
    for c in (
        ShapeError, DimError, DTypeError, ArgumentError, ProgramError, WorkerError, OutOfMemory,
        IndexOutOfRange, LinAlgError, LostError, PeerFailed, ServerError,
    )
}  # fmt: skip
