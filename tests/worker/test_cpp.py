"""What a compiler does before its first program, and once for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gt.worker.engines import cpp, inductor  # noqa: E402
from gt.worker.engines import traced as module  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's, of torch


class Found(Exception):
    pass


@pytest.fixture
def codecache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Inductor's module that calls the C++ compiler, as it was before these tests, and its settings."""
    from torch._inductor import codecache, config

    for name in ("_HEADER_DIR", "_HEADER_LOCK_DIR", "_precompile_header"):
        monkeypatch.setattr(codecache, name, getattr(codecache, name))
    with config.patch({"cpp.vec_isa_ok": False}):
        yield codecache


def test_the_headers_made_early_are_those_that_a_program_needs(
    codecache: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def precompile(*args: Any, **kwargs: Any) -> str:
        asked.append((args, sorted((key, str(value)) for key, value in kwargs.items())))
        raise Found

    from torch._inductor import config

    monkeypatch.setattr(codecache, "_precompile_header", precompile)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with config.patch({"aot_inductor.compile_wrapper_opt_level": "O0"}):
        with pytest.raises(Found):
            cpp.make_headers("cpu")
        graph, given = module.trace(lambda x: [x.exp()], lambda: [torch.empty(8)])
        with pytest.raises(Exception, match="Found"):
            module._compiled(graph, given, print)
    early, late = asked
    assert early == late


def test_a_header_is_looked_up_once_unless_it_has_gone(codecache: Any, tmp_path: Path) -> None:
    header, made = tmp_path / "x.h", []

    def precompile(name: str, *, min_optimize: bool = False) -> str:
        made.append((name, min_optimize))
        header.write_text("")
        return str(header)

    codecache._precompile_header = precompile
    for _ in range(2):
        cpp._look_once()
        assert codecache._precompile_header("a") == str(header)
    assert made == [("a", False)]
    codecache._precompile_header("a", min_optimize=True)
    assert made == [("a", False), ("a", True)]
    os.remove(header)
    codecache._precompile_header("a")
    assert made == [("a", False), ("a", True), ("a", False)]


def test_headers_are_kept_with_the_programs(codecache: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Temporary files are deleted after an hour."""
    from torch._inductor import config

    monkeypatch.setattr(cpp, "_compiler", lambda home: "g++")
    with config.patch({}):
        before = {name: getattr(config.cpp, name) for name in ("cxx", "threads", "dynamic_threads")}
        try:
            cpp.choose_settings("cpu", True, tmp_path)
            assert codecache._HEADER_DIR == str(tmp_path / "headers")
            assert codecache._HEADER_LOCK_DIR.startswith(codecache._HEADER_DIR)
        finally:
            for name, value in before.items():
                setattr(config.cpp, name, value)


def test_a_rehearsal_uses_no_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would use the GPU: a compiler that waits for work has no memory there."""
    monkeypatch.setattr(module, "inductor_aot", lambda *given: pytest.fail("called"))
    module.rehearse()


def test_a_compiler_gets_ready_whatever_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first job says what is wrong, if it cannot do without."""
    monkeypatch.setenv("GT_DEBUG_COMPILE", "1")
    monkeypatch.setattr(inductor, "_USED", ("gt.no_such_module",))
    inductor.get_ready("cuda:0", tmp_path, lambda: True)
    assert "stopped by ModuleNotFoundError: No module named 'gt.no_such_module'" in capfd.readouterr().err
