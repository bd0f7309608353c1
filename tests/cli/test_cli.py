"""The `gt` command."""

from __future__ import annotations

import pytest

from gt import config
from gt.cli.main import COMMANDS, main


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in out
    assert main([]) == 2


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("gt ")


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sevre"]) == 2
    said = f"gt: unknown command 'sevre'; expected one of: {', '.join(COMMANDS)}\n"
    assert capsys.readouterr() == ("", said)


def test_config_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("=")[0] for line in lines] == [variable for variable, _, _ in config.settings()]


def test_settings_are_shown_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_TOKEN", "sesame")
    monkeypatch.setenv("GT_SERVER", "gt://lab:1#user-sesame")
    assert "sesame" not in repr(config.load())


def test_a_bad_setting_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_THREADS", "many")
    assert main(["serve"]) == 2
    assert capsys.readouterr() == ("", "gt: GT_THREADS='many': expected int\n")


def test_sizes_are_written_as_people_write_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GT_WORKER_MEMORY", "40G")
    monkeypatch.setenv("GT_SPILL_MEMORY", "1.5M")
    assert (config.load().worker_memory, config.load().spill_memory) == (40 << 30, 3 << 19)
    monkeypatch.setenv("GT_SPILL_MEMORY", "-1")
    assert config.load().spill_memory == -1
    monkeypatch.setenv("GT_WORKER_MEMORY", "much")
    assert main(["serve"]) == 2
    assert capsys.readouterr() == ("", "gt: GT_WORKER_MEMORY='much': expected a size, such as 40G\n")


def test_ops_lists_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    from gt.ops.engines import EXCEPTIONS
    from gt.ops.record import TABLE

    assert main(["ops"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["op", "kind", "gradient", "engines"]
    table, below = rows[: len(TABLE)], rows[len(TABLE) :]
    assert [row.split()[0] for row in table] == sorted(TABLE)
    assert below == [f"{n} needs torch on numpy, jax workers too: {EXCEPTIONS[n]}." for n in sorted(EXCEPTIONS)]
    assert main(["ops", "matmul"]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert row.split()[:6] == ["matmul", "kernel", "yes", "torch", "numpy", "jax"]
    assert TABLE["matmul"].doc in row
    assert main(["ops", "mutmul"]) == 2
    assert capsys.readouterr() == ("", "gt: no op 'mutmul'; gt ops lists them all\n")


@pytest.mark.parametrize(
    "arguments",
    [["serve", "-p", "http"], ["serve", "--prot", "1"], ["ops", "--all"], ["config", "x"], ["worker", "-p", "x"]],
)
def test_a_wrong_argument_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"gt {arguments[0]}: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["serve", "worker", "up", "user", "login", "log", "top", "trace", "ops", "config"])
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: gt {command}" in capsys.readouterr().out
