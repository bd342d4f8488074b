"""Documents: every example in them is run, and every generated part is compared.

In a page, `<!-- file: NAME -->` before a block saves it under that name in the page's own folder, and
`<!-- until: TEXT -->` says that the program runs until it prints TEXT and is then ended with SIGTERM.
`<!-- example: PATH -->` says that the block is that file of `examples/`, which other tests run.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from docs import build
from pollux.events import Event
from tests.acceptance.hostile import CERTIFICATES
from tests.acceptance.terminal import start_pollux

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"((?:<!-- [^\n]* -->\n)*)```(python|yaml|console|ini)\n(.*?)```", re.DOTALL)
PATIENCE = 60.0


def blocks(page: Path) -> list[tuple[dict[str, str], str, str]]:
    found = []
    for marks, kind, text in BLOCK.findall(page.read_text()):
        options = dict(re.findall(r"<!-- (\w+): (.*?) -->", marks))
        found.append((options, kind, text))
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_every_example_of_a_page_runs(page, tmp_path):
    for name, theirs in (("server.pem", "good.pem"), ("server.key", "server.key")):  # the operator's own
        shutil.copy(CERTIFICATES / theirs, tmp_path / name)
    for number, (options, kind, text) in enumerate(blocks(page)):
        if "example" in options:
            assert text == (ROOT / "examples" / options["example"]).read_text(), f"{options['example']} reads otherwise"
            continue
        match kind:
            case "python":
                run_python(options, text, tmp_path, number)
            case "yaml":
                (tmp_path / options.get("file", "pollux.yaml")).write_text(text)
                run(f"pollux check -c {options.get('file', 'pollux.yaml')}", tmp_path)
            case "console":
                for line in text.splitlines():
                    run(line.removeprefix("$ "), tmp_path)


def test_pages_with_examples_were_found():
    assert {"README.md", "first-steps.md", "schedules.md"} <= {page.name for page in PAGES if blocks(page)}


def test_generated_parts_are_up_to_date():
    assert build.pages(), "no page has a generated part"
    stale = [page.name for page in build.pages() if build.rebuilt(page.read_text()) != page.read_text()]
    assert not stale, f"{stale} differ from the code: run `make docs`"


def test_links_between_pages_lead_somewhere():
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())]
    assert links
    broken = [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()]
    assert not broken, broken


def test_the_page_of_logs_tells_of_every_event_and_its_fields():
    rows = [line for line in (ROOT / "docs" / "logs.md").read_text().splitlines() if line.startswith("| `")]
    untold = []
    for kind in Event.__subclasses__():
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
        words = {word for row in rows if f"`{name}`" in row.split("|")[1] for word in re.findall(r"\w+", row)}
        fields = [{"traceback": "trace"}.get(field, field) for field in kind.__struct_fields__]  # its name in a line
        untold += [f"{name}: {field}" for field in (name, *fields) if field not in words]
    assert not untold


def test_the_page_of_health_tells_of_every_finding():
    text = (ROOT / "docs" / "health.md").read_text()
    names = set(re.findall(r'Finding\(\s*"(\w+)"', (ROOT / "src/pollux/observe/health.py").read_text()))
    assert names == set(re.findall(r"^\| `(\w+)` \| (?:deployment|this node|each node)", text, re.MULTILINE))


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_the_files_that_a_page_about_the_code_names_are_there(page):
    text = (ROOT / page).read_text()
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.(?:py|sql|lua))[`:]", text)
    assert len(named) > 5
    assert [
        name for name in named if not any((ROOT / "src" / "pollux").rglob(name)) and not (ROOT / name).exists()
    ] == []


def test_the_page_of_the_architecture_names_every_loop():
    code = "\n".join(path.read_text() for path in (ROOT / "src/pollux").rglob("*.py"))
    loops = set(re.findall(r"^class ([A-Z]\w+)\(Loop\)", code, re.MULTILINE))
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert loops == set(re.findall(r"^\| ([A-Z]\w+) \| ", page, re.MULTILINE))


def test_a_decision_that_was_superseded_says_by_which():
    pages = {page.name[:4]: page.read_text() for page in (ROOT / "docs" / "decisions").glob("*.md")}
    named = re.compile(r"upersedes[^.\n]*?\b(0\d{3})\b")
    assert named.findall('Adds to 0016. Supersedes "three locks" in [0042](0042-locks.md).') == ["0042"]
    pairs = [(old, new) for new, text in pages.items() for old in named.findall(text)]
    silent = [
        pair
        for pair in pairs  # an older page that explains nothing more is removed
        if pair[0] in pages and not re.search(rf"^Superseded [^\n]*\[{pair[1]}\]", pages[pair[0]], re.MULTILINE)
    ]
    assert not silent, "say so below the title of the older one"


def run(command: str, folder: Path) -> None:
    program, *words = shlex.split(command)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": folder}
    if program == "pollux":
        process = start_pollux(words, env=environment() | {"PYTHONWARNINGS": "error"}, **pipes)
    else:
        process = subprocess.Popen([program, *words], env=environment(), **pipes)
    with process:
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0, f"{command}: exit {process.returncode}\n{out}\n{err}"


def run_python(options: dict[str, str], text: str, folder: Path, number: int) -> None:
    script = folder / options.get("file", f"block{number}.py")
    script.write_text(text)
    if "until" in options:
        run_until(options["until"], script)
    else:
        run(f"{sys.executable} {script.name}", folder)


def run_until(wanted: str, script: Path) -> None:
    """The program prints what the page says it prints, and a SIGTERM ends it well."""
    process = subprocess.Popen(
        [sys.executable, script.name],
        cwd=script.parent,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watchdog = threading.Timer(PATIENCE, process.kill)
    watchdog.start()
    seen = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            seen.append(line)
            if wanted in line:
                break
        else:
            pytest.fail(f"{script.name} never printed {wanted!r}: {''.join(seen)}")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, "".join(seen)
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


def environment() -> dict[str, str]:
    binaries = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}
