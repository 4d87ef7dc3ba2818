"""What the documentation points at: links, headings, and the tests that show a promise."""

from __future__ import annotations

import ast
import itertools
import os
import re
from pathlib import Path

import pytest
from tools import site, site_hooks

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FOLDERS = "crash|interop|simulation|spark|unit"
HEADINGS = sorted(
    str(path.parent.relative_to(ROOT))
    for folder in ("checkpoints", "jobs", "src/kafkalog/files", "streaming")
    for path in (ROOT / folder).rglob("__init__.py")
)


def anchors(page: Path) -> set[str]:
    """Give the headings of a page as links name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not heading or heading in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    named = re.findall(rf"`(?:tests/)?((?:{FOLDERS})/[\w/]*test_\w+)(?:\.py)?`", page.read_text())
    assert [name for name in named if not (ROOT / "tests" / f"{name}.py").exists()] == []


def test_the_site_has_every_page_in_its_navigation_and_no_dead_link() -> None:
    """As ``make docs`` finds it, without the network that this needs."""
    found = {**site.pages(), **site.command_pages(), **site.module_pages()}
    navigation = site.settings(found).partition("\nnav:\n")[2]
    named = re.findall(r"([\w/.-]+\.md)$", navigation, re.MULTILINE)
    assert sorted(named) == sorted(found), "mkdocs.yml names a page twice, or one that is not there"
    for name, text in found.items():
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            path = link.partition("#")[0]
            if "://" in link or not path:
                continue
            target = (Path("/") / name).parent.joinpath(path)
            there = Path(*target.parts[1:]).as_posix()
            there = re.sub(r"[^/]+/\.\./", "", there)
            assert there in found or (ROOT / "docs" / there).exists(), f"{name}: {link}"


def test_each_command_has_a_page_with_its_options() -> None:
    found = site.command_pages()
    assert len(found) > 35
    assert "`--topic TOPIC`, `-t TOPIC`" in found["commands/consume.md"]
    assert "`--checkpoint CHECKPOINT`" in found["commands/run-archive.md"]
    assert "in a new table. Default: `--by-day`. |" in found["commands/run-archive.md"]
    assert "transactions. Default: `read_uncommitted`. |" in found["commands/consume.md"]


def test_what_docstrings_have_for_another_tool_is_not_on_the_site() -> None:
    shown = site_hooks.on_page_content(
        "<p>::</p>\n<p>see :func:<code>~kafkalog.api.read</code>, :meth:<code>get</code></p>"
    )
    assert shown == "<p>see <code>read</code>, <code>get</code></p>"
    first = '<span class="n">_done</span><span class="p">,</span> '
    call = '<span class="n">append</span><span class="p">(</span>{}<span class="n">path</span>'
    assert site_hooks.on_page_content(call.format(first)) == call.format("")


def test_an_option_is_not_broken_after_its_hyphens() -> None:
    inline = "<p>with <code>--since 1h\n-n 1</code></p>"
    block = "<pre><span></span><code>--since 1h</code></pre><pre><code>-n 1</code></pre>"
    marked = inline.replace("--since", '<span class="word">--since</span>')
    marked = marked.replace("-n", '<span class="word">-n</span>')
    assert site_hooks.on_page_content(inline + block) == marked + block
    assert site_hooks.on_page_content("<code>a-b</code>") == "<code>a-b</code>"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 900


def test_the_pages_of_users_are_short_enough_to_be_read() -> None:
    """Tutorial, how-to and reference: who adds a fact says another one more shortly."""
    found = site.pages()
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    of_users = navigation.partition("  - Explanation:")[0]
    names = set(re.findall(r"([\w-]+\.md)$", of_users, re.MULTILINE)) - {"changelog.md"}
    assert len(names) > 25
    assert sum(len(found[name].split()) for name in names) <= 35_000


def test_every_row_of_what_shows_it_names_a_test() -> None:
    shown = (ROOT / "docs/evidence.md").read_text().partition("## Tests by promise")[2]
    rows = [line for line in shown.splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.startswith(("| promise |", "| ---"))]
    assert promises
    assert [row for row in promises if not re.search(rf"`(?:{FOLDERS})/", row)] == []


def test_the_map_names_every_page() -> None:
    page = ROOT / "docs/README.md"
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", page.read_text()))
    assert named == {path.name for path in page.parent.glob("*.md")} - {page.name}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_function_that_a_page_names_is_in_its_file(page: Path) -> None:
    folders = "benchmarks|checkpoints|jobs|src|streaming|tests"
    named = re.findall(rf"`((?:{folders})/[\w/]+\.py)(?:::([\w.]+))?`", page.read_text())
    assert [f"{path}::{name}" for path, name in named if not is_defined(ROOT / path, name)] == []


def test_every_module_that_a_docstring_names_is_another_one_that_is_there() -> None:
    root = ROOT / "src"
    folders = (Path(folder) for folder, *_ in os.walk(root / "kafkalog", followlinks=True))
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for folder in folders
        for path in folder.glob("*.py")
    }
    for module, path in files.items():
        package = module if path.stem == "__init__" else module.rpartition(".")[0]
        text = re.sub(r"\n\s*#? ?", "", path.read_text())
        for named in re.findall(r":mod:`~?([^`]+)`", text):
            dots = len(named) - len(named.lstrip("."))
            base = ".".join(package.split(".")[: 1 - dots or None]) + "." if dots else ""
            assert (found := base + named.lstrip(".")) in files, f"{path}: :mod:`{named}`"
            assert found != module, f"{path} refers to itself"


@pytest.mark.parametrize("package", HEADINGS, ids=str)
def test_the_heading_of_a_package_names_its_modules(package: str) -> None:
    folder = ROOT / package
    heading = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    there = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    there |= {path.parent.name for path in folder.glob("*/__init__.py")}
    named = {*re.findall(r"``(\w+)``", heading)}
    assert {name for name in there - named if not name.endswith("_kernels")} == set()
    terms = re.findall(r"^((?:``\w+``(?:, )?)+)$", heading, re.MULTILINE)
    assert {*re.findall(r"``(\w+)``", " ".join(terms))} - there == set()


@pytest.mark.parametrize("way", ["in", "out"])
def test_a_rows_way_crosses_a_dozen_modules_and_enters_no_package_twice(way: str) -> None:
    page = (ROOT / "docs/architecture.md").read_text().partition(f"## A row's way {way}\n")[2]
    rows = re.findall(
        r"^\| (\d+) \| `([\w/]+\.py)::", page.partition("Beside the way")[0], re.MULTILINE
    )
    files = [file for _, file in rows]
    assert [int(number) for number, _ in rows] == [*range(1, 13)]
    assert len({*files}) == len(files)
    chapters = [chapter for chapter, _ in itertools.groupby(files, chapter_of)]
    assert len({*chapters}) == len(chapters), chapters
    for number, file in enumerate(files[1:], 1):
        linked = [other for other in files[:number] if imports(file, other) or imports(other, file)]
        assert linked, f"{file} has no import in common with the stations before it"


def chapter_of(file: str) -> str:
    """Name the chapter that a module lies in: ``streaming/log`` for all that lies below it."""
    return "/".join(
        file.removeprefix("src/kafkalog/").split("/")[: 2 if "streaming" in file else 1]
    )


def imports(file: str, other: str) -> bool:
    """Say whether a module imports another one, or a name from it."""
    module = other.removeprefix("src/").removeprefix("kafkalog/").removesuffix(".py")
    package, _, name = f"kafkalog.{module}".replace("/", ".").rpartition(".")
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.ImportFrom) and (
            node.module == f"{package}.{name}"
            or (node.module == package and name in {alias.name for alias in node.names})
        ):
            return True
    return False


def is_defined(file: Path, name: str) -> bool:
    """Say whether a file is there and defines a function, a class, or a method of one."""
    if not file.exists():
        return False
    scope: list[ast.stmt] = ast.parse(file.read_text()).body
    for part in name.split(".") if name else ():
        named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        found = [each for each in scope if isinstance(each, named) and each.name == part]
        if not found:
            return False
        scope = found[0].body
    return True


def test_the_examples_of_python_run_as_they_are_pasted(tmp_path: Path) -> None:
    """The functions one after the other, in the order of the pages; each page's need its import."""
    python = python_blocks("python.md")[:2]
    latest = [block for block in python_blocks("latest.md") if "kafkalog." in block]
    assert [len(python), len(latest)] == [2, 2]
    for blocks in (["\n".join(python)], latest):
        for block in blocks:
            text = block.replace("/var/kafka-logs", str(tmp_path / "logs"))
            exec(text.replace("idle_timeout=10", "idle_timeout=0"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_installs_kafkalog_from_an_index(page: Path) -> None:
    """It is on none: a clone or a wheel is installed."""
    lines = re.findall(r"pip install[^`\n#]*", page.read_text())
    assert [line for line in lines if re.search(r"\bkafkalog(?!-\d)", line)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_session_for_delta_looks_at_small_tables_with_few_tasks(page: Path) -> None:
    """Delta takes 50 tasks for each look, in local mode too."""
    text = page.read_text()
    makes_a_session = "**DELTA_SETTINGS" in text or "DeltaCatalog" in text
    assert not makes_a_session or "spark.databricks.delta.snapshotPartitions" in text


def python_blocks(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
