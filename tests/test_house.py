"""The house is as DESIGN says: imports only go down, the public names are there, and `import bsvi` is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bsvi

ROOT = Path(bsvi.__file__).parent
NOTHING: set[str] = set()
CORE = {"bounds", "buffer_weights", "model", "trajectory", "refine", "theta", "checks", "objectives"}
MAY_IMPORT = {  # what each module or folder may import of bsvi
    "__init__": CORE | {"methods", "annealing", "evaluation", "gap", "training"},
    "bounds": NOTHING,
    "buffer_weights": NOTHING,
    "model": NOTHING,
    "closures": NOTHING,
    "identity": {"closures", "model"},
    "hidden": {"closures", "model"},
    "checks": {"hidden", "identity", "trajectory"},
    "nets": NOTHING,
    "data": {"files"},
    "runtime": NOTHING,
    "terminal": NOTHING,
    "report": {"arrays", "files", "reading"},
    "bench": CORE | {"methods", "nets", "runtime", "terminal"},
    "trajectory": {"model"},
    "refine": {"model", "trajectory"},
    "theta": {"model", "trajectory"},
    "objectives": CORE - {"objectives"},
    "methods": CORE,
    "config": {"files"},
    "files": NOTHING,
    "reading": {"files"},
    "arrays": {"files", "reading"},
    "weights": {"reading"},
    "checkpoint": {"reading"},
    "lock": {"files", "reading"},
    "runs": {"checkpoint", "files", "lock", "reading", "weights"},
    "team": {"objectives"},  # for its types alone
    "health": CORE | {"team"},
    "signals": NOTHING,
    "streams": NOTHING,
    "state": {"health"},
    "validation": CORE | {"health", "signals", "streams", "team"},
    "training": CORE | {"health", "runs", "signals", "state", "streams", "team", "validation"},
    "shares": CORE | {"noise"},
    "distributed": CORE | {"runtime", "shares", "team"},
    "watch": {"files", "runs", "training", "experiments", "terminal"},
    "experiments": CORE | {"methods", "nets", "data", "config", "training"},
    "batching": {"config"},
    "results": {"checkpoint", "files", "reading"},
    "sweep": {"config", "files", "reading", "results", "team"},
    "engines": {"files", "reading", "sweep"},
    "plan": {"config", "data", "experiments"},
    "pace": CORE | {"config", "data", "evaluation", "experiments", "plan", "runtime", "training"},
    "counting": CORE | {"bench", "config", "experiments", "pace", "plan", "training"},
    "trained": {"config", "data", "experiments", "files", "model", "objectives", "reading", "runs", "weights"},
    "pictures": {"data", "files", "model"},
    "cli": {"commands", "files", "__version__"},
    "__main__": {"cli"},
    "record": {"files", "reading"},
    "scores": {"arrays", "files", "reading"},
    "diagnostics": {"bounds"},
    "noise": {"model", "trajectory"},
    "measure": CORE | {"identity", "noise", "record"},
    "evaluation": CORE | {"diagnostics", "measure", "noise", "scores"},
    "gap": CORE | {"diagnostics", "evaluation", "measure", "noise", "scores"},
    "hmc": {"model"},
    "annealing": CORE | {"diagnostics", "evaluation", "hmc", "measure", "noise", "scores"},
}


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
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if room == "commands":  # the verbs sit on top of everything; cli alone calls them
        return
    assert room in MAY_IMPORT, f"{room} is new: say in MAY_IMPORT what it may import"
    assert set(imported(path)) - {room} <= MAY_IMPORT[room]


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


def test_importing_bsvi_does_not_import_torch():
    code = "import sys, bsvi; bsvi.__version__; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


PLAIN = {"open", "read_text", "write_text", "write_bytes", "load_file", "safe_open", "mkstemp", "NamedTemporaryFile"}
MAY_OPEN = {  # who may open files by other ways than bsvi.files, and why
    "files.py": "it is the way",
    "config.py": "--config names a file of the user's own, a pipe among them",
    "commands/plan.py": "--json does too",
    "data/": "images are the user's own; bsvi/data/integrity.py guards them",
    "bench/": "it reads no run folder",
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
            assert not plain or any(word in text for word in HARMLESS), f"line {node.lineno}: {text}; use bsvi.files"
