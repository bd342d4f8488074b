"""Does the house stand as it was drawn?  One function per rule; each answers what is wrong, in words, or nothing.

Every rule takes the tree it looks at, so that `test_architecture.py` can also show it a tree with the fault planted.
`package` is the folder `pollux`; `repository` is the folder with `pyproject.toml`.
"""

import ast
import asyncio
import re
import subprocess
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path

LINES_PER_FILE_MAX = 800
LINES_PER_FUNCTION_MAX = 50
LINES_OF_A_PART = 60  # a module with fewer belongs into the only one that imports it

FRONT = "__init__"  # pollux itself: the front door, which opens to all rooms

VAGUE = {"manager", "helper", "util", "utility", "common", "base", "misc", "core"}
# Participles, particles and private words: an engineer of the field looks for none of them.
PRIVATE = {
    *("told", "said", "asked", "given", "taken", "kept", "owned", "steered"),
    *("aside", "beside", "behind", "ahead", "way", "words", "whoever", "somebody", "nobody"),
    *("door", "doors", "glance", "leap", "leaps", "tally", "tallies", "shelf", "bell", "bells"),
}
ASYNCIO_NAMES = {
    name for owner in (asyncio, asyncio.AbstractEventLoop, asyncio.Queue, asyncio.TaskGroup) for name in dir(owner)
}

Arrow = tuple[str, int]  # a module that is imported, and the line that does it
Functions = (ast.FunctionDef, ast.AsyncFunctionDef)


# the table


def wrong_arrows(
    package: Path,
    table: Mapping[str, AbstractSet[str]],
    ground: AbstractSet[str],
    wired: Mapping[str, AbstractSet[str]] | None = None,
) -> list[str]:
    """A room imports the ground, itself, and what its row allows; also inside functions and for types only.

    `wired` are files that may import a room more than theirs.
    """
    wrong = []
    for path, tree in modules(package):
        room = room_of(path, package, ground)
        if room != "ground" and room not in table:
            wrong.append(f"{path}: the house has no room {room!r}; give it a row in the table, and write a decision")
            continue
        allowed = (table[room] if room != "ground" else set()) | {"ground", room}
        allowed |= (wired or {}).get(path.relative_to(package).as_posix(), set())
        for module, line in arrows(path, tree, package):
            other = room_of(package / Path(*module.split(".")[1:]), package, ground)
            if other not in allowed:
                wrong.append(f"{path}:{line}: {room} imports {other} ({module}), which the table of the house forbids")
    return wrong


def impure_imports(package: Path, pure: AbstractSet[str], banned: AbstractSet[str]) -> list[str]:
    """In the pure rooms and files time and dice are arguments: nothing there can ask for them, or reach a store."""
    wrong = []
    for path, tree in modules(package):
        inner = path.relative_to(package).as_posix()
        if not any(inner == place or inner.startswith(f"{place}/") for place in pure):
            continue
        for module, line in imports(path, tree, package):
            if any(module == name or module.startswith(f"{name}.") for name in banned):
                wrong.append(f"{path}:{line}: imports {module}, but {inner} is pure")
        wrong += [
            f"{path}:{line}: reads the clock ({call}), but {inner} is pure" for call, line in clock_readings(tree)
        ]
    return wrong


def room_of(path: Path, package: Path, ground: AbstractSet[str]) -> str:
    """The first name below the package: a folder, or a file that is a room by itself."""
    parts = path.relative_to(package).parts
    name = parts[0].removesuffix(".py") if parts else FRONT
    return "ground" if name in ground else name


def arrows(path: Path, tree: ast.Module, package: Path) -> list[Arrow]:
    """Every module of ours that this one imports."""
    return [(name, line) for name, line in imports(path, tree, package) if name.split(".")[0] == package.name]


def imports(path: Path, tree: ast.Module, package: Path) -> Iterator[Arrow]:
    """Every import, in whatever form, anywhere in the file."""
    here = [package.name, *path.relative_to(package).with_suffix("").parts]
    for node in _walked(tree):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                above = here[: len(here) - level] if level else []
                origin = ".".join([*above, *([module] if module else [])])
                found = [_deepest(origin, alias.name, package) for alias in names]
            case (
                ast.Call(func=ast.Name(id="import_module" | "__import__"), args=[ast.Constant(value=str(name)), *_])
                | ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_])
            ):
                found = [name]
            case _:
                continue
        yield from ((name, node.lineno) for name in dict.fromkeys(found))


def clock_readings(tree: ast.Module) -> Iterator[Arrow]:
    """`datetime.now` and its kind: the module is harmless, these ask the machine."""
    for node in _walked(tree):
        if isinstance(node, ast.Attribute) and node.attr in {"now", "utcnow", "today"}:
            owner, call = ast.unparse(node.value), ast.unparse(node)
            if owner.split(".")[-1] in {"datetime", "date"}:
                yield call, node.lineno


def _deepest(module: str, name: str, package: Path) -> str:
    """`from pollux import plan` imports a module, `from pollux.plan import gate` perhaps only a name of one."""
    place = package.parent.joinpath(*module.split("."), name)
    return f"{module}.{name}" if place.is_dir() or place.with_suffix(".py").is_file() else module


# size and names


def too_long(package: Path) -> list[str]:
    """A file or a function past its limit wants to be split along the flow.  A docstring counts: it is read, too."""
    wrong = []
    for path, tree in modules(package):
        lines = len(path.read_text().splitlines())
        if lines > LINES_PER_FILE_MAX:
            wrong.append(f"{path}: {lines} lines, more than {LINES_PER_FILE_MAX}; split it along the flow")
        wrong += [
            f"{path}:{node.lineno}: {node.name} has {length} lines, more than {LINES_PER_FUNCTION_MAX}"
            for node in _walked(tree)
            if isinstance(node, Functions) and (length := _length(node)) > LINES_PER_FUNCTION_MAX
        ]
    return wrong


def small_parts(package: Path, started: AbstractSet[str] = frozenset()) -> list[str]:
    """A short module with one importer is a part of that one.  `started` are files that begin a process."""
    importers: dict[Path, set[Path]] = {}
    for path, tree in modules(package):
        for module in {name for name, _ in arrows(path, tree, package)} | _named_modules(tree, package.name):
            file = package.parent.joinpath(*module.split(".")).with_suffix(".py")
            importers.setdefault(file, set()).add(path)
    wrong = []
    for path, _ in modules(package):
        lines, others = len(path.read_text().splitlines()), importers.get(path, set()) - {path}
        is_part = lines < LINES_OF_A_PART and len(others) < 2 and path.stem not in {"__init__", "__main__"}
        if is_part and path.relative_to(package).as_posix() not in started:
            whom = ", ".join(str(other) for other in others) or "no module"
            wrong.append(f"{path}: {lines} lines, imported by {whom}; move it there")
    return wrong


def _named_modules(tree: ast.Module, package: str) -> set[str]:
    """Modules that a table names in text, as `pollux.cli.check:check`."""
    texts = [node.value for node in _walked(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {text.partition(":")[0] for text in texts if text.startswith(f"{package}.") and " " not in text}


def vague_names(package: Path) -> list[str]:
    """A module or class whose name says nothing, or says it in a word of our own, has no single job yet."""
    wrong = []
    for path, tree in modules(package):
        for name in path.relative_to(package).with_suffix("").parts:
            wrong += [f"{path}: the module name {name!r} says {word!r}; name its one job" for word in _vague(name)]
        for node in _walked(tree):
            if isinstance(node, ast.ClassDef):
                wrong += [
                    f"{path}:{node.lineno}: the class name {node.name!r} says {word!r}; name its one job"
                    for word in _vague(node.name)
                ]
    return wrong


def shared_class_names(package: Path) -> list[str]:
    """A class name occurs once: who searches for it finds one place."""
    places: dict[str, list[str]] = {}
    for path, tree in modules(package):
        for node in _walked(tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    return [f"{name}: the class name occurs in {', '.join(found)}" for name, found in places.items() if len(found) > 1]


def riddles(package: Path) -> list[str]:
    """A module opens with a noun phrase that names what is inside, not with a question."""
    wrong = []
    for path, tree in modules(package):
        first = re.split(r"(?<=[.?!:])\s", ast.get_docstring(tree) or "", maxsplit=1)[0]
        if first.endswith("?"):
            wrong.append(f"{path}: opens with a question; name what is inside")
        elif not first and path.stem != "__init__":
            wrong.append(f"{path}: has no docstring; name what is inside")
    return wrong


def the_word_task(package: Path) -> list[str]:
    """asyncio owns the word: its own names may be used, none may be made."""
    wrong = []
    for path, tree in modules(package):
        wrong += [f"{path}: 'task' in a module name" for name in path.relative_to(package).parts if _says_task(name)]
        for name, line, is_use in identifiers(tree):
            if _says_task(name) and not (is_use and name in ASYNCIO_NAMES):
                wrong.append(
                    f"{path}:{line}: {name!r} uses the word task, which asyncio owns; ours are job, run, attempt"
                )
    return wrong


def identifiers(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """Every identifier with its line, and whether it only uses a name that was made elsewhere."""
    for node in _walked(tree):
        match node:
            case ast.Name(id=name, ctx=ctx):
                yield name, node.lineno, isinstance(ctx, ast.Load)
            case ast.Attribute(attr=name, ctx=ctx):
                yield name, node.lineno, isinstance(ctx, ast.Load)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno, False
            case ast.arg(arg=str(name)) | ast.keyword(arg=str(name)):
                yield name, node.lineno, False
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                for alias in names:
                    yield alias.name, node.lineno, True
                    if alias.asname:
                        yield alias.asname, node.lineno, False
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno, False
            case _:
                continue


def words(identifier: str) -> list[str]:
    """`BaseStore_v2` is base, store, v; `score` is one word and hides no `core`."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)]


def _vague(name: str) -> list[str]:
    singular = {word: word.removesuffix("s").replace("utilitie", "utility") for word in words(name)}
    return [word for word, stem in singular.items() if (VAGUE | PRIVATE) & {word, stem}]


def _says_task(name: str) -> bool:
    return bool({"task", "tasks"} & set(words(name)))


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return function.end_lineno - function.lineno + 1


# the rooms' doors and the stores


def unlisted_exports(package: Path) -> list[str]:
    """What a room's `__init__` takes from its own files is what it lists in `__all__`: no more, no less."""
    wrong = []
    for path in sorted(package.rglob("__init__.py")):
        tree = ast.parse(path.read_text())
        listed, bound = _listed(tree), _bound(path, tree, package)
        if listed is None:
            if bound:
                wrong.append(f"{path}: exports {', '.join(sorted(bound))}, but has no __all__ of plain strings")
            continue
        if len(listed) != len(set(listed)):
            wrong.append(f"{path}: __all__ names something twice")
        wrong += [f"{path}: takes in {name!r}, which __all__ does not list" for name in sorted(bound - set(listed))]
        if not _has(tree, "__getattr__"):  # a lazy door: the names are tried by importing them
            here = bound | _assigned(tree)
            wrong += [f"{path}: __all__ lists {name!r}, which is not there" for name in sorted(set(listed) - here)]
    return wrong


def _listed(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List() | ast.Tuple() as value):
                return [item.value for item in value.elts if isinstance(item, ast.Constant)]
            case ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.List() | ast.Tuple() as value):
                return [item.value for item in value.elts if isinstance(item, ast.Constant)]
            case _:
                continue
    return None


def _bound(path: Path, tree: ast.Module, package: Path) -> set[str]:
    """The public names that an `__init__` makes, or takes from the files of its own folder."""
    own = ".".join([package.name, *path.parent.relative_to(package).parts])
    names = {node.name for node in tree.body if isinstance(node, (*Functions, ast.ClassDef))}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.level == 1 or f"{node.module}.".startswith(f"{own}.")):
            names |= {alias.asname or alias.name for alias in node.names}
    return {name for name in names if not name.startswith("_")}


def _assigned(tree: ast.Module) -> set[str]:
    """Also constants and names taken from elsewhere: they may be listed, they need not be."""
    return {
        name
        for node in tree.body
        for name in (
            [target.id for target in node.targets if isinstance(target, ast.Name)]
            if isinstance(node, ast.Assign)
            else [node.target.id]
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            else [alias.asname or alias.name for alias in node.names]
            if isinstance(node, ast.Import | ast.ImportFrom)
            else []
        )
    }


def _has(tree: ast.Module, function: str) -> bool:
    return any(isinstance(node, Functions) and node.name == function for node in tree.body)


# the repository

# Put together from parts, so that the rule does not find itself.
TELL_TALES = {
    "a path of one machine": re.compile(r"(?<![\w.~-])" + "/" + r"(?:root|work|home)/"),
    "a package registry's address": re.compile(
        "|".join(
            r"\.".join(host) for host in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("npmjs", "com"))
        )
    ),
    "a page outside the repository": re.compile("shared" + "/(?:DESIGN|STYLE)" + "|" + r"\.\./" + "shared"),
}


def tell_tales(repository: Path, files: list[Path]) -> list[str]:
    """Nothing in the repository says where it was written or where its parts were fetched."""
    wrong = []
    for path in files:
        try:
            text = (repository / path).read_text()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            wrong += [f"{path}:{number}: names {what}" for what, pattern in TELL_TALES.items() if pattern.search(line)]
    return wrong


def repository_files(repository: Path) -> list[Path]:
    """What is tracked, or will be with the next `git add`."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=repository,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [Path(name) for name in listing.split("\0") if name]


def modules(package: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(package.rglob("*.py")):
        yield path, _parsed(path.read_text(), str(path))


@cache  # read by one rule after the other, changed by none
def _parsed(text: str, path: str) -> ast.Module:
    return ast.parse(text, path)


@cache
def _walked(tree: ast.Module) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))
