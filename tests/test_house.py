"""The house is as DESIGN says: imports only go down, the public names are there, and `import bsvi` is light."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bsvi
from bsvi.tables.plugins import TABLES

ROOT = Path(bsvi.__file__).parent
FLOORS = [  # a room imports itself and lower floors only; files at the top of bsvi/, checks/ and beyond/ are the paper
    {"system", "tables"},
    {"paper", "nets", "data", "runs", "report"},
    {"training", "evaluation"},
    {"experiments", "adapters"},
    {"sweeps", "planning", "bench"},
    {"commands", "cli", "__main__", "__init__"},
]
PAPER = {
    "amortized",
    "bounds",
    "buffer_weights",
    "model",
    "parameters",
    "direct",
    "draws",
    "examples",
    "graphs",
    "trajectory",
    "refinement",
    "theta",
    "objectives",
    "methods",
    "checks",
    "beyond",
}
NEVER = {("training", "nets"), ("training", "data"), ("evaluation", "nets"), ("evaluation", "data")}


def room_of(module):
    return "paper" if module in PAPER else module


def imported(path):
    """The parts of bsvi that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "bsvi" else [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{path}: relative imports hide the direction")
        yield from (name.split(".")[1] for name in names if name.startswith("bsvi."))


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_only_go_down(path):
    """Lazy imports and those for types alone count, too."""
    floor = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
    room = room_of(path.relative_to(ROOT).parts[0].removesuffix(".py"))
    for other in map(room_of, set(imported(path)) - {"__version__"}):
        below = floor[other] < floor[room] or room in ("cli", "__main__")
        assert other == room or below, f"{room} must not import {other}"
        assert (room, other) not in NEVER, f"{room} must not import {other}"


def test_at_the_top_of_the_package_stands_the_paper_alone():
    files = {path.stem for path in ROOT.glob("*.py")} - {"__init__", "__main__", "cli"}
    assert files == PAPER - {"checks", "beyond"}
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms <= set.union(*FLOORS) | {"checks", "beyond"}


def test_every_public_name_is_there_and_documented():
    for name in bsvi.__all__:
        assert getattr(bsvi, name) is not None
        assert name == "METHODS" or getattr(bsvi, name).__doc__
    with pytest.raises(AttributeError, match="public names are"):
        bsvi.objectiv  # noqa: B018


def test_no_public_name_is_the_name_of_a_module():
    """Python binds a submodule to its package's attribute, and would shadow a function of that name."""
    modules = {path.stem for path in ROOT.glob("*.py")} | {path.name for path in ROOT.iterdir() if path.is_dir()}
    assert modules.isdisjoint(bsvi.__all__)


def test_importing_bsvi_or_a_room_does_not_import_torch():
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"nets", "data"}  # which are torch itself
    code = f"import sys, bsvi, {', '.join(f'bsvi.{room}' for room in sorted(rooms))}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


PLAIN = {"open", "read_text", "write_text", "write_bytes", "load_file", "safe_open", "mkstemp", "NamedTemporaryFile"}
MAY_OPEN = {  # who may open files by other ways than bsvi.system.files, and why
    "system/files.py": "it is the way",
    "experiments/changes.py": "--config names a file of the user's own, a pipe among them",
    "commands/plan.py": "--json does too",
    "data/": "images are the user's own; bsvi/data/integrity.py guards them",
    "bench/": "it reads no run folder",
    "system/native.py": "it moves what a compiler made within the user's own cache folder",
}
HARMLESS = (
    "os.devnull",
    "open(number",
    "resources.files",
    "/proc/",
    "Image.open(file",
    "archive.open(member",
    "tarfile.open(fileobj",
)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_of_run_folders_are_opened_in_one_way(path):
    """A link, a pipe or a device in a stranger's folder is refused only if nobody opens it by another way."""
    if path.relative_to(ROOT).as_posix().startswith(tuple(MAY_OPEN)):
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            method, text = isinstance(node.func, ast.Attribute), ast.unparse(node)
            name = node.func.attr if method else getattr(node.func, "id", "")
            plain = name in PLAIN or (method and name == "read_bytes" and "cmdline" not in text)
            plain = plain or text.startswith(("os.replace", "os.rename", "np.load"))
            assert not plain or any(word in text for word in HARMLESS), (
                f"line {node.lineno}: {text}; use bsvi.system.files"
            )


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_there_is_one_clock(path):
    """Who needs a duration takes a Stopwatch of bsvi.system.clock, and says it by format_duration."""
    if path.name != "clock.py":
        assert not re.search(r"time\.(monotonic|perf_counter|process_time)\b", path.read_text())
        assert not re.search(r"^def format_\w*(time|clock|hours|minutes|seconds|duration)\b", path.read_text(), re.M)


MAY_LIST = {  # who may list names of a table, and why
    "tables/": "it is the table",
    "report/tables.py": "with which of the paper's methods others are compared",
}


def list_literals(tree):
    """The texts of every literal collection: a tuple, list, set, the keys of a dict, the choices of a Literal."""
    for node in ast.walk(tree):
        parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        yield getattr(node, "lineno", 0), {part.value for part in parts if isinstance(part, ast.Constant)}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_names_of_a_table_are_listed_nowhere_else(path):
    """Rule 5: a list of three or more of its names would be a copy, which a new row does not reach."""
    if path.relative_to(ROOT).as_posix().startswith(tuple(MAY_LIST)):
        return
    for line, texts in list_literals(ast.parse(path.read_text())):
        for table in TABLES:
            copied = texts & set(table)
            few = min(3, len(table))
            assert len(copied) < few, f"line {line} lists {sorted(copied)}; read the table of {table.concept}s"


def test_a_copy_of_a_tables_names_is_found():
    (copy,) = (texts for _, texts in list_literals(ast.parse('NAMES = ("vae", "svi", "bsvi")')) if texts)
    assert len(copy & set(bsvi.METHODS)) == 3


def test_what_the_tables_import_later_is_there():
    text = "".join(path.read_text() for path in sorted(ROOT.glob("tables/*.py")))
    places = re.findall(r'later\("(bsvi[\w.]+):(\w+)"', text)
    assert len(places) >= 10
    for module, name in places:
        assert callable(getattr(importlib.import_module(module), name)), f"{module}:{name}"


CLASSES = [
    (path, node.name)
    for path in sorted(ROOT.rglob("*.py"))
    for node in ast.parse(path.read_text()).body
    if isinstance(node, ast.ClassDef)
]


def test_the_name_of_a_class_means_one_thing():
    names = [name for _, name in CLASSES]
    assert sorted({name for name in names if names.count(name) > 1}) == []


PARTICIPLES = ("told", "heard", "walked", "judged", "priced", "drawn", "found", "held", "moved", "taught_by", "trouble")
PARTICIPLES += ("certified", "slope_of")


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_are_not_named_by_participles(path):
    """They say what they do: `walk`, not `walked`. A function that answers yes or no may begin with is_ or has_."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            assert node.name.strip("_") not in PARTICIPLES, f"line {node.lineno}: {node.name}"


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_short(path):
    lines = len(path.read_text().splitlines())
    assert lines <= 250, f"{lines} lines; divide it"


FIXED = {"batch_norm"}  # stands in for torch's function of this name


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_function_has_more_than_six_arguments_without_their_names(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name not in FIXED:
            own = [a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in ("self", "cls")]
            assert len(own) <= 6, f"line {node.lineno}: {node.name} takes {len(own)}; put * before the seventh"


SECTIONS = ("Args:", "Returns:", "Example:")


PUBLIC = [
    pytest.param(function, id=f"{module.__name__}.{name}")
    for module in (bsvi, *map(importlib.import_module, ("bsvi.adapters", "bsvi.data", "bsvi.report")))
    for name in module.__all__
    if inspect.isfunction(function := getattr(module, name))
]


@pytest.mark.parametrize("function", PUBLIC)
def test_public_functions_have_one_form_of_docstring(function):
    """A summary line, the formula, then Args, Returns and Example, in this order; every name of Args is a parameter."""
    lines, parameters = inspect.getdoc(function).splitlines(), set(inspect.signature(function).parameters)
    found = [line for line in lines if line in SECTIONS]
    without = set() if parameters else {"Args:"}
    if function.__module__.startswith("bsvi.adapters.from_"):  # an example needs the other library
        without |= {"Example:"}
    assert found == [section for section in SECTIONS if section not in without], found
    assert lines[0].endswith(".") and (len(lines) == 1 or not lines[1])
    args = lines[lines.index("Args:") + 1 : lines.index("Returns:")] if parameters else []
    named = {line.split(":")[0].strip() for line in args if line.startswith("    ") and line[4] not in " "}
    assert bool(named) == bool(parameters) and named <= parameters, named


@pytest.mark.parametrize("room", ["bsvi", "tests"])
def test_no_comment_hangs_on_a_closing_bracket(room):
    """The formatter puts a comment there that makes a line too long; it belongs above the statement."""
    for path in sorted((ROOT.parent / room).rglob("*.py")):
        assert not re.search(r"^\s*\):?  #.*", path.read_text(), re.M), path
