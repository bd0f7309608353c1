"""The names of torch.hub that load files: models of other packages read their weights with them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from gt.client.functions.save import load
from gt.errors import StateError

__all__ = ["download_url_to_file", "get_dir", "load_state_dict_from_url", "set_dir"]

_chosen: list[str] = []


def get_dir() -> str:
    """The folder of downloaded files: torch's, so that files are there once for both."""
    return _chosen[-1] if _chosen else os.path.expanduser("~/.cache/torch/hub")


def set_dir(d: str | os.PathLike[str]) -> None:
    """Choose the folder of downloaded files."""
    _chosen.append(os.path.expanduser(d))


def download_url_to_file(url: str, dst: str, hash_prefix: str | None = None, progress: bool = True) -> None:
    """Download a file. It is at dst when it is complete, and its SHA-256 begins with hash_prefix."""
    target = Path(dst).expanduser()
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        try:
            with urllib.request.urlopen(url) as source:
                shutil.copyfileobj(source, file)
            file.seek(0)
            found = hashlib.file_digest(file, "sha256").hexdigest()
            if hash_prefix is not None and not found.startswith(hash_prefix):
                raise StateError(f"{url}: the SHA-256 of the file is {found}, expected {hash_prefix}...")
            os.replace(file.name, target)
        finally:
            Path(file.name).unlink(missing_ok=True)


def load_state_dict_from_url(
    url: str, model_dir: str | None = None, map_location: Any = None, progress: bool = True, check_hash: bool = False,
    file_name: str | None = None, weights_only: bool = True,
) -> Any:  # fmt: skip
    """The contents of a file of gt.save() or torch.save(), which is downloaded if it is not in model_dir."""
    folder = Path(model_dir or os.path.join(get_dir(), "checkpoints"))
    folder.mkdir(parents=True, exist_ok=True)
    name = file_name or os.path.basename(urlparse(url).path)
    path = folder / name
    if not path.exists():
        given = re.search(r"-([a-f0-9]{8,})\.", name)  # torch's files have it in their names
        download_url_to_file(url, str(path), given[1] if check_hash and given else None, progress)
    return load(path, map_location=map_location, weights_only=weights_only)
