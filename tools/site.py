"""Lay out the pages of the documentation's site, which ``make docs`` builds.

``python -m tools.site`` writes ``build/site-pages``: the pages of ``docs``, README, CHANGELOG and
CONTRIBUTING, a page for each command, made from the command line itself, and one for each public
module, which mkdocstrings fills. Links are turned to where the pages lie on the site.
"""

from __future__ import annotations

import inspect
import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from kafkalog.jobs.cli.app import PIPELINES, app

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["MODULES", "command_pages", "lay_out", "pages", "settings"]

ROOT: Final = Path(__file__).parents[1]
_TARGET: Final = ROOT / "build" / "site-pages"

MODULES: Final = (
    "kafkalog.streaming.api",
    "kafkalog.streaming.consumer.consumer",
    "kafkalog.streaming.spark.listeners",
    "kafkalog.jobs.session",
    "kafkalog.errors",
    "kafkalog.model",
)
"""The modules that other programs import from."""

_MOVED: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "docs/README.md": "map.md",
}
"""Pages that lie elsewhere in the repository, or would be the first page of the site."""

_LINK: Final = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_ROLE: Final = re.compile(r":[a-z]+:`[~.]*(?:[\w.]*\.)?(\w+)`")
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")


def pages() -> dict[str, str]:
    """Return the Markdown of all pages that are written by hand, by their names on the site."""
    sources = [*(ROOT / name for name in _MOVED), *sorted((ROOT / "docs").glob("*.md"))]
    found = {}
    for path in sources:
        name = _name_of(path)
        if name not in found:
            found[name] = _LINK.sub(_turned(path), path.read_text(encoding="utf-8"))
    return found


def _name_of(path: Path) -> str:
    where = path.relative_to(ROOT).as_posix()
    return _MOVED.get(where, where.removeprefix("docs/"))


def _turned(page: Path) -> Any:  # noqa: ANN401 - a function for re.sub
    """Return what turns a link of a page; one to a file that is on no page becomes its name."""

    def turn(link: re.Match[str]) -> str:
        path, mark, heading = link[2].partition("#")
        if "://" in link[2] or not path:
            return link[0]
        target = (page.parent / path).resolve()
        if target.suffix == ".md" or (ROOT / "docs") in target.parents:
            return f"[{link[1]}]({_name_of(target)}{mark}{heading})"
        return f"{link[1]} (`{target.relative_to(ROOT).as_posix()}`)"

    return turn


def command_pages() -> dict[str, str]:
    """Return a page for each command and pipeline, and one that lists them."""
    known: Any = typer.main.get_command(app)
    shown = {name: each for name, each in known.commands.items() if not each.hidden}
    for name in PIPELINES:
        pipeline: Any = import_module(f"kafkalog.jobs.{name}")
        shown[f"run {name}"] = typer.main.get_command(pipeline.app)
    found = {
        f"commands/{name.replace(' ', '-')}.md": _command_page(name, each)
        for name, each in shown.items()
    }
    rows = "\n".join(
        f"| [`{name}`]({name.replace(' ', '-')}.md) | {_first_sentence(each)} |"
        for name, each in shown.items()
    )
    found["commands/index.md"] = (
        "# Commands\n\n| command | what it does |\n| --- | --- |\n" + rows + "\n\n"
        "Each takes `-h`. Exit codes: 0 fine, 1 a problem was found, 2 bad use.\n"
    )
    return found


def _first_sentence(command: Any) -> str:  # noqa: ANN401 - a class of typer
    return (
        _plain(command.help or "").strip().split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
    )


def _command_page(name: str, command: Any) -> str:  # noqa: ANN401 - a class of typer
    parts = [f"# kafkalog {name}\n", _help_of(command)]
    example = (command.epilog or "").removeprefix("Example: ")
    if example:
        parts.append(f"```\n{example}\n```\n")
    parts.append("| argument or option | meaning |\n| --- | --- |")
    parts += [_row(each) for each in command.params if not getattr(each, "hidden", False)]
    return "\n".join(parts) + "\n"


def _help_of(command: Any) -> str:  # noqa: ANN401 - a class of typer
    """Return what a command says of itself; its examples become blocks."""
    lines = _plain(inspect.cleandoc(command.help or "")).splitlines()
    return "".join(f"{each if each.startswith('    ') else each.strip()}\n" for each in lines)


def _plain(text: str) -> str:
    return _ROLE.sub(r"`\1`", _ANSI.sub("", text)).replace("\b", "").replace("``", "`")


def _row(param: Any) -> str:  # noqa: ANN401 - a class of typer
    if param.param_type_name == "argument":
        name = f"`{param.metavar or param.name.upper()}`"
    else:
        value = "" if param.is_flag else f" {param.metavar or ''}"
        names = [*param.opts, *param.secondary_opts]
        name = ", ".join(f"`{each}{value}`".replace("|", "\\|") for each in names)
    default = "" if param.default in {None, False} or callable(param.default) else param.default
    if default is True:  # of `--by-day`, `--no-by-day`
        default = param.opts[0]
    is_shown = isinstance(default, str | int | float) and default != ""
    shown = f" Default: `{default}`." if is_shown else ""
    text = " ".join((param.help or "").split()).replace("|", "\\|")
    return f"| {name} | {text}{shown} |"


def module_pages() -> dict[str, str]:
    """Return a page for each public module, for mkdocstrings to fill."""
    found = {f"api/{name}.md": f"# {name}\n\n::: {name}\n" for name in MODULES}
    links = "\n".join(f"- [{name}]({name}.md)" for name in MODULES)
    found["api/index.md"] = (
        f"# API by module\n\n{links}\n\n[api.md](../api.md) has all of it on one page.\n"
    )
    return found


def settings(found: Mapping[str, str]) -> str:
    """Return what MkDocs is told: ``mkdocs.yml``, with the generated pages in their places."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for folder in ("api", "commands"):
        names = sorted(name for name in found if name.startswith(f"{folder}/"))
        names.sort(key=lambda name: not name.endswith("/index.md"))
        lines = "".join(f"\n          - {name}" for name in names)
        text = text.replace(f": {folder}/\n", f":{lines}\n")
    others = [name for name in found if not re.search(rf"\s{re.escape(name)}$", text, re.MULTILINE)]
    return text + "".join(f"      - {name}\n" for name in others)


def lay_out(target: Path, found: Mapping[str, str]) -> None:
    """Write pages, what they show beside text, and what MkDocs is told."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    (target.parent / "mkdocs.yml").write_text(settings(found), encoding="utf-8")
    for name, text in found.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for picture in _beside():
        path = target / picture.relative_to(ROOT / "docs")
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, path)


def _beside() -> Iterator[Path]:
    for path in (ROOT / "docs").rglob("*"):
        if path.is_file() and path.suffix != ".md":
            yield path


if __name__ == "__main__":
    lay_out(_TARGET, {**pages(), **command_pages(), **module_pages()})
