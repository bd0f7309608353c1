"""Every setting, its default and its GT_* variable. No other file reads the environment."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent  #: The folder of GT's own files.
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def nbytes(text: str) -> int:
    """A size as people write it.

    >>> nbytes("40G"), nbytes("1.5k"), nbytes("100")
    (42949672960, 1536, 100)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError("no size")
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " "))


def _nbytes_if_any(text: str) -> int:
    """A size, or -1."""
    return -1 if text.strip() == "-1" else nbytes(text)


_WORDS: dict[object, str] = {nbytes: "a size, such as 40G", _nbytes_if_any: "a size, such as 40G, or -1"}


def _setting(variable: str, default: str, doc: str, parse: Callable[[str], object] | None = None) -> Any:
    def read() -> object:
        text = os.environ.get(variable, default)
        if parse is bool:
            return text.strip().lower() not in ("", "0", "false", "no", "off")
        try:
            return parse(text) if parse else text
        except ValueError:
            wanted = _WORDS.get(parse) or getattr(parse, "__name__", "text")
            raise ValueError(f"{variable}={text!r}: expected {wanted}") from None

    shown = variable not in ("GT_SERVER", "GT_TOKEN")  # they have secrets in them
    return field(default_factory=read, repr=shown, metadata={"variable": variable, "default": default, "doc": doc})


@dataclass(frozen=True)
class Config:
    """The settings of this process, read once when first asked for."""

    server: str = _setting("GT_SERVER", "", "address of a running server; empty: start a private one")
    token: str = _setting("GT_TOKEN", "", "secret that clients and workers need to join a server")
    engine: str = _setting("GT_ENGINE", "torch", "array library of workers: torch (or pytorch), numpy or jax")
    device: str = _setting("GT_DEVICE", "", "device of a worker, such as cpu or cuda:0; empty: a GPU if there is one")
    threads: int = _setting("GT_THREADS", "0", "CPU threads of a worker's engine; 0: chosen by measuring", int)
    workers: int = _setting("GT_WORKERS", "0", "workers of a private server; 0: one per GPU, or one without GPUs", int)
    auto_shard: bool = _setting(
        "GT_AUTO_SHARD", "0", "a session uses all workers; its plans improve by themselves", bool
    )
    plan_after_s: float = _setting(
        "GT_PLAN_AFTER",
        "2",
        "with GT_AUTO_SHARD: seconds that a program runs before it is planned anew; 0: never",
        float,
    )
    hardware: str = _setting(
        "GT_HARDWARE", "measured", "what plans of running programs are priced for: a name of gt.plan's, or measured"
    )
    config_dir: str = _setting("GT_CONFIG_DIR", "", "folder for users, keys and logins; empty: ~/.config/gt")
    signals: str = _setting("GT_SIGNALS", "", "file with the placement of ops in named contexts (gt.signal)")
    instruction_log: str = _setting(
        "GT_INSTRUCTION_LOG", "", "file to which the dispatcher logs every message; gt log reads it"
    )
    verbose: bool = _setting(
        "GT_VERBOSE", "0", "report on stderr what starts, joins and leaves, and what a client connects to", bool
    )
    debug_client: bool = _setting(
        "GT_DEBUG_CLIENT", "0", "log what the client does: connections, ops of calls, uploads, fetches, failures", bool
    )
    debug_dispatcher: bool = _setting("GT_DEBUG_DISPATCHER", "0", "log every event of the dispatcher", bool)
    debug_worker: bool = _setting("GT_DEBUG_WORKER", "0", "log what a worker runs", bool)
    debug_compile: bool = _setting("GT_DEBUG_COMPILE", "0", "log the code generated for programs", bool)
    lease_s: float = _setting(
        "GT_LEASE", "3600", "seconds that a server keeps what a named session keeps, when its client is gone", float
    )
    worker_timeout_s: float = _setting("GT_WORKER_TIMEOUT", "15", "seconds a call waits for a worker to join", float)
    peer_timeout_s: float = _setting("GT_PEER_TIMEOUT", "300", "seconds a worker waits for others in a call", float)
    start_timeout_s: float = _setting("GT_START_TIMEOUT", "60", "seconds to wait for a private server to start", float)
    connect_timeout_s: float = _setting("GT_CONNECT_TIMEOUT", "5", "seconds to wait for a server's answer", float)
    spin_us: int = _setting("GT_SPIN_US", "400", "microseconds a worker polls for more work before it sleeps", int)
    awake_us: int = _setting(
        "GT_AWAKE_US",
        "-1",
        "microseconds that client, server and worker poll during and after a small fetch before they sleep; "
        "-1: 3000 while three of four or more cores are free, else less",
        int,
    )
    worker_memory: int = _setting(
        "GT_WORKER_MEMORY", "0", "bytes a worker may use; 0: all memory of its device", nbytes
    )
    spill_memory: int = _setting(
        "GT_SPILL_MEMORY",
        "-1",
        "bytes of host memory a worker may use for tensors of idle sessions; -1: on a GPU its part of half the memory, "
        "on a CPU none: they go to disk",
        _nbytes_if_any,
    )
    spill_dir: str = _setting(
        "GT_SPILL_DIR", "", "folder on the disk for tensors of idle sessions; empty: the folder for temporary files"
    )
    share_memory: bool = _setting("GT_SHARE_MEMORY", "1", "send tensors through shared memory on one machine", bool)
    fake_memory: int = _setting("GT_FAKE_MEMORY", "0", "for tests: a program that allocates more bytes fails", int)
    auto_compile: bool = _setting(
        "GT_AUTO_COMPILE", "1", "compile programs that are called often, in the background", bool
    )
    compile_nice: int = _setting(
        "GT_COMPILE_NICE", "15", "how much the processes that compile give way to others: 19 most, 0 not at all", int
    )
    cache_dir: str = _setting(
        "GT_CACHE_DIR", "", "folder for compiled programs and measured hardware; empty: ~/.cache/gt"
    )
    cache_bytes: int = _setting("GT_CACHE_BYTES", str(256 << 20), "bytes of each cache of programs and code", nbytes)


def engine_name(text: str) -> str:
    """The name of an engine as users write it: torch is also called pytorch."""
    return "torch" if text.lower() == "pytorch" else text


def home(config: Config) -> Path:
    """The folder for users, keys and logins."""
    return Path(config.config_dir).expanduser() if config.config_dir else Path.home() / ".config" / "gt"


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
    return {**os.environ, **only(**changes)}


def only(**changes: object) -> dict[str, str]:
    """These settings as variables of the environment."""
    variables = {f.name: f.metadata["variable"] for f in fields(Config)}
    return {variables[name]: str(value) for name, value in changes.items()}


def cache_folder(chosen: str) -> Path:
    """The folder that the user chose (GT_CACHE_DIR), or the default one. Without a home folder, as in some containers,
    it is a path where nothing can be made."""
    try:
        return (Path(chosen) if chosen else Path.home() / ".cache" / "gt").absolute()
    except RuntimeError:
        return Path(os.devnull) / "no home folder"


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


def order_gpus() -> None:
    """Let CUDA number the GPUs as nvidia-smi does; to be called before an array library is imported."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def slurm_gpus() -> list[str]:
    """The numbers of the GPUs that Slurm gave to this step or job; []: it does not say."""
    text = os.environ.get("SLURM_STEP_GPUS") or os.environ.get("SLURM_JOB_GPUS") or ""
    return [name.strip() for name in text.split(",") if name.strip()]


def slurm_local_id() -> int:
    """The number of this process among those of its step on this machine."""
    text = os.environ.get("SLURM_LOCALID", "0")
    return int(text) if text.isdecimal() else 0
