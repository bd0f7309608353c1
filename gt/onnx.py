"""The name of torch.onnx, for scripts that import it. Exporting is not possible and says so."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["export"]


def export(*args: Any, **kwargs: Any) -> NoReturn:
    """Not possible: load the parameters into the torch model, and export that."""
    raise NotImplementedError(
        "onnx.export: GT has no graph of a model; write gt.save(model.state_dict(), file), load it into torch's model "
        "and export that"
    )
