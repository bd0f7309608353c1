"""Every error a user can see. Each also is the Python error that torch would raise there."""

from __future__ import annotations


class GTError(RuntimeError):
    """The root of GT's errors; a RuntimeError, which is what torch raises for most of them."""


class ShapeError(GTError, RuntimeError):
    """Sizes do not fit together; raised at the line that made the op."""


class DimError(GTError, IndexError):
    """A dimension or an index that the tensor does not have."""


class DTypeError(GTError, TypeError):
    """A type that the op does not take: of elements, or of an argument."""


class ArgumentError(GTError, ValueError):
    """Any other argument an op or a function cannot take."""


class StateError(ArgumentError, RuntimeError):
    """A state whose names are not those of the module or optimizer that is to take it over."""


class AutogradError(GTError, RuntimeError):
    """Backward through a graph that is gone, an in-place write to a leaf, and the like."""


class ProgramError(GTError, ValueError):
    """A program that is not well formed: wrong numbering, unknown op, bad attributes."""


class FunctionError(GTError, RuntimeError):
    """A `@gt.function` did something that cannot be replayed, such as reading a value."""


class WorkerError(GTError, RuntimeError):
    """A call failed on a worker; the message carries the user's file and line."""


class OutOfMemory(WorkerError, MemoryError):
    """A call needed more memory than its worker, or its session, has."""


class IndexOutOfRange(WorkerError, IndexError):
    """An index tensor held a value outside the dimension it indexes."""


class LinAlgError(WorkerError):
    """A matrix that cannot be inverted, factored or solved with; which one, only its values tell."""


class LostError(WorkerError, ConnectionError):
    """The value was on a worker that is gone, or the server itself is gone."""


class PeerFailed(WorkerError):
    """A worker that ran its part of the same call failed, is gone, or did not answer in time."""


class ServerError(GTError, ConnectionError):
    """No server, a server of another version, a refused message."""


class StartError(GTError, RuntimeError):
    """A server or worker could not be started."""


class ForkError(GTError, RuntimeError):
    """GT was used in a forked child; the connection belongs to the parent."""


#: Errors that travel: the wire carries the name, the client raises the class.
BY_NAME: dict[str, type[GTError]] = {
    c.__name__: c
    for c in (
        ShapeError, DimError, DTypeError, ArgumentError, ProgramError, WorkerError, OutOfMemory,
        IndexOutOfRange, LinAlgError, LostError, PeerFailed, ServerError,
    )
}  # fmt: skip
