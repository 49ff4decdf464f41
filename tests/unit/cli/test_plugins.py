"""Verbs of other distributions: found, missing, broken, and never in the way of our own."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import click
import pytest

from penstock import __version__
from penstock.cli import entry, main, plugins

LAB = tomllib.loads((Path(__file__).parents[3] / "lab" / "pyproject.toml").read_text())["project"]

Plug = Callable[..., None]


@click.command("shout")
def shout() -> None:
    click.echo("LOUD")


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plug]:
    """Let exactly these verbs be plugged in: name → what is to be loaded."""

    def plug(**found: str) -> None:
        points = EntryPoints(EntryPoint(name, value, "") for name, value in found.items())
        monkeypatch.setattr(plugins, "entry_points", lambda **_: points)
        entry._list_plugins.cache_clear()

    yield plug
    entry._list_plugins.cache_clear()


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("verb", ["bench", "demo", "generate", "simulate"])
def test_without_the_lab_its_verbs_say_how_to_get_it(
    verb: str, plug: Plug, capsys: pytest.CaptureFixture[str]
) -> None:
    plug()
    assert run(verb, "--help") == 3
    said = capsys.readouterr().err
    assert f"{verb!r} is part of penstock-lab, which is not installed" in said
    assert "pip install penstock-lab" in said
    assert run("--help") == 0
    shown = capsys.readouterr().out
    assert f"\n  {verb} " not in shown
    assert "\n  apply " in shown


def test_a_broken_plug_in_disturbs_nothing_else(
    plug: Plug, capsys: pytest.CaptureFixture[str]
) -> None:
    plug(demo="penstock_nowhere:command", odd="penstock:__version__")
    assert run("demo") == 3
    assert "'demo' of penstock_nowhere cannot be loaded: ModuleNotFoundError" in (
        capsys.readouterr().err
    )
    assert run("odd") == 3
    assert "penstock:__version__ is no Command" in capsys.readouterr().err
    assert run("schema") == 0
    capsys.readouterr()
    assert run("--help") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "demo Run a demonstration on this machine." in shown
    assert "odd From penstock." in shown


def test_a_plug_in_adds_a_verb(
    plug: Plug, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plug(shout="tests_of_plugins:shout")
    monkeypatch.setattr(EntryPoint, "load", lambda _: shout)
    assert run("shout") == 0
    assert capsys.readouterr().out == "LOUD\n"
    assert run("shot") == 2
    assert "did you mean 'shout'?" in capsys.readouterr().err


def test_a_plug_in_replaces_no_verb_of_ours(plug: Plug, capsys: pytest.CaptureFixture[str]) -> None:
    plug(schema="penstock_nowhere:command")
    assert run("schema") == 0
    assert "reservation" in capsys.readouterr().out


def test_the_lab_names_what_it_has() -> None:
    points = LAB["entry-points"]
    found = {
        name: EntryPoint(name, value, group).load()
        for group, named in points.items()
        for name, value in named.items()
    }
    assert set(points[plugins.COMMANDS]) == {
        name for name, verb in entry.VERBS.items() if verb.place is None
    }
    assert all(isinstance(found[name], click.Command) for name in points[plugins.COMMANDS])
    assert set(points[plugins.SIMULATIONS]) == {"nursing-home"}


def test_both_distributions_have_one_version() -> None:
    assert LAB["version"] == __version__
    assert LAB["dependencies"] == [f"penstock[all]=={__version__}"]
