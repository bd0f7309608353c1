"""Every setting, its default and its GT_* variable. No other file reads the environment."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent  #: The folder of GT's own files.


def _flag(text: str) -> bool:
    return text.strip().lower() not in ("", "0", "false", "no", "off")


def _setting(variable: str, default: str, doc: str, parse: type | None = None) -> Any:
    def read() -> object:
        text = os.environ.get(variable, default)
        if parse is bool:
            return _flag(text)
        try:
            return parse(text) if parse else text
        except ValueError:
            raise ValueError(f"{variable}={text!r}: expected {parse.__name__ if parse else 'text'}") from None

    return field(default_factory=read, metadata={"variable": variable, "default": default, "doc": doc})


@dataclass(frozen=True)
class Config:
    """The settings of this process, read once when first asked for."""

    server: str = _setting("GT_SERVER", "", "address of a running server; empty: start a private one")
    token: str = _setting("GT_TOKEN", "", "secret that clients and workers need to join a server")
    engine: str = _setting("GT_ENGINE", "torch", "array library of workers: torch (or pytorch), numpy or jax")
    device: str = _setting("GT_DEVICE", "", "device of a worker, such as cpu or cuda:0; empty: a GPU if there is one")
    threads: int = _setting("GT_THREADS", "0", "CPU threads of a worker's engine; 0: chosen by measuring", int)
    workers: int = _setting("GT_WORKERS", "0", "workers of a private server; 0: one per GPU, or one without GPUs", int)
    auto_shard: bool = _setting("GT_AUTO_SHARD", "0", "a session uses all workers; large uploads are sharded", bool)
    signals: str = _setting("GT_SIGNALS", "", "file with the placement of ops in named contexts (gt.signal)")
    instruction_log: str = _setting("GT_INSTRUCTION_LOG", "", "file to which the dispatcher logs every message")
    verbose: bool = _setting("GT_VERBOSE", "0", "report on stderr what starts, joins and leaves", bool)
    debug_client: bool = _setting("GT_DEBUG_CLIENT", "0", "log what the client records and sends", bool)
    debug_dispatcher: bool = _setting("GT_DEBUG_DISPATCHER", "0", "log every event of the dispatcher", bool)
    debug_worker: bool = _setting("GT_DEBUG_WORKER", "0", "log what a worker runs", bool)
    debug_compile: bool = _setting("GT_DEBUG_COMPILE", "0", "log the code generated for programs", bool)
    worker_timeout_s: float = _setting("GT_WORKER_TIMEOUT", "15", "seconds a call waits for a worker to join", float)
    peer_timeout_s: float = _setting("GT_PEER_TIMEOUT", "30", "seconds a worker waits for others in a call", float)
    start_timeout_s: float = _setting("GT_START_TIMEOUT", "60", "seconds to wait for a private server to start", float)
    connect_timeout_s: float = _setting("GT_CONNECT_TIMEOUT", "5", "seconds to wait for a server's answer", float)
    spin_us: int = _setting("GT_SPIN_US", "400", "microseconds a worker polls for more work before it sleeps", int)
    worker_memory: int = _setting("GT_WORKER_MEMORY", "0", "bytes a worker may use; 0: all memory of its device", int)
    share_memory: bool = _setting("GT_SHARE_MEMORY", "1", "send tensors through shared memory on one machine", bool)
    fake_memory: int = _setting("GT_FAKE_MEMORY", "0", "for tests: a program that allocates more bytes fails", int)
    auto_compile: bool = _setting(
        "GT_AUTO_COMPILE", "1", "compile programs that are called often, in the background", bool
    )
    cache_dir: str = _setting("GT_CACHE_DIR", "", "folder for compiled programs; empty: ~/.cache/gt")
    cache_bytes: int = _setting("GT_CACHE_BYTES", str(256 << 20), "bytes of each cache of programs and code", int)


def engine_name(text: str) -> str:
    """The name of an engine as users write it: torch is also called pytorch."""
    return "torch" if text.lower() == "pytorch" else text


def settings() -> list[tuple[str, str, str]]:
    """(variable, default, what it does) for every setting."""
    return [(f.metadata["variable"], f.metadata["default"], f.metadata["doc"]) for f in fields(Config)]


def load() -> Config:
    """The settings from the current environment."""
    return Config()


def replace(config: Config, **changes: Any) -> Config:
    """The settings with some of them changed."""
    return dataclasses.replace(config, **changes)


def environment(**changes: object) -> dict[str, str]:
    """The environment for a child process, with these settings changed."""
    variables = {f.name: f.metadata["variable"] for f in fields(Config)}
    return {**os.environ, **{variables[name]: str(value) for name, value in changes.items()}}


def compiler_environment(home: str) -> dict[str, str]:
    """The environment of the process that compiles programs; its compilers keep their files in that folder."""
    threads = max(1, min(8, (os.cpu_count() or 2) // 2))
    return {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": home,
        "TRITON_CACHE_DIR": os.path.join(home, "triton"),
        "TMPDIR": os.path.join(home, "scratch"),  # a compiler that is killed leaves its files there
        "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
    }


def prepare_torch(quiet: bool) -> None:
    """Set how torch behaves where workers talk to each other; to be called before torch is imported."""
    if quiet:  # torch prints a stack trace for every peer that is gone
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")  # clean up, and leave the process alive


def cxx() -> str:
    """The C++ compiler that the user chose."""
    return os.environ.get("CXX", "")


def nccl_host() -> str:
    """The name of this host for NCCL, where the user gives it another one."""
    return os.environ.get("NCCL_HOSTID", "")


def visible_gpus() -> list[str] | None:
    """What CUDA_VISIBLE_DEVICES allows; None: everything."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    allowed: list[str] = []
    for name in text.split(","):
        if not name.strip() or name.strip() == "-1":
            break  # CUDA also ignores what follows a bad entry
        allowed.append(name.strip())
    return allowed
