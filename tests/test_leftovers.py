"""Nothing is left over in the package: no code that nobody calls, and no ten lines that stand in two places."""

import ast
import re
from collections import Counter
from pathlib import Path

import bsvi

ROOT = Path(bsvi.__file__).parent
CODE = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(ROOT.rglob("*.py"))}
CALLED_BY_OTHERS = {  # names that another library calls
    "_pyro_post_sample": "Pyro's messengers",
    "_pyro_sample": "Pyro's messengers",
    "initialize_parameters": "torch's lazy modules",
    "arg_constraints": "torch's distributions",
    "cls_to_become": "torch's lazy modules",
    "bijective": "torch's transforms",
    "codomain": "torch's transforms",
    "_inverse": "torch's transforms",
    "forward_shape": "torch's transforms",
    "_coordinates": "torch's table of bijections",
    "_end_with_the_last_phase": "pydantic",
    "get_renderables": "rich",
    "show_cursor": "rich",
}


def find_unused(texts, elsewhere=""):
    """Functions, classes, fields and constants that no line of ``texts`` uses, and that ``elsewhere`` does not name."""
    defined, used = {}, Counter()
    for name, text in texts.items():
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used[node.id] += 1
            elif isinstance(node, ast.Attribute):
                used[node.attr] += 1
            elif isinstance(node, ast.keyword) and node.arg:
                used[node.arg] += 1
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
                used.update(re.findall(r"\w+", node.value))  # names in tables, such as later("module:name")
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.setdefault(node.name, f"{name}:{node.lineno}")
            owns = isinstance(node, ast.Module | ast.ClassDef)
            for line in node.body if owns else []:
                targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
                for target in targets:
                    if isinstance(target, ast.Name):
                        defined.setdefault(target.id, f"{name}:{line.lineno}")
    said = set(re.findall(r"\w+", elsewhere))
    return {name: place for name, place in defined.items() if not used[name] and name not in said and name[:2] != "__"}


def test_no_code_is_used_by_tests_alone():
    top = ROOT.parent
    pages = [top / "README.md", *top.glob("docs/*.md"), *top.glob("benchmarks/*.py"), *top.glob("examples/*.py")]
    unused = find_unused(CODE, "\n".join(path.read_text() for path in pages))
    assert unused.keys() == CALLED_BY_OTHERS.keys(), unused


def test_code_that_nobody_uses_is_found():
    own = "class A:\n    field: int = 0\n    def call(self):\n        return helper(self.field)\n"
    text = f"SIZE = 3\n{own}def helper(x):\n    return x\n"
    assert set(find_unused({"a.py": text})) == {"SIZE", "A", "call"}
    assert find_unused({"a.py": text}, "`A().call()` and SIZE") == {}


SHARED = 10  # lines: from here on two places should be one


def find_repetitions(texts):
    """Where a run of as many lines stands that stood before; blank lines, comments and imports do not count."""
    seen, found = {}, []
    for name, text in texts.items():
        lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
        lines = [pair for pair in lines if re.search(r"\w", pair[1]) and not re.match("#|import |from ", pair[1])]
        for at in range(len(lines) - SHARED + 1):
            run, here = tuple(line for _, line in lines[at : at + SHARED]), f"{name}:{lines[at][0]}"
            found += [f"{seen[run]} and {here}"] if run in seen else []
            seen.setdefault(run, here)
    return found


def test_no_ten_lines_of_the_package_stand_twice():
    assert find_repetitions(CODE) == []


def test_ten_lines_that_stand_twice_are_found():
    lines = [f"step_{number}()" for number in range(SHARED)]
    indented = "\n".join(f"    {line}  " for line in lines)
    assert find_repetitions({"a": "\n".join(lines), "b": f"def f():\n{indented}\n"}) == ["a:1 and b:2"]
    assert find_repetitions({"a": "\n".join(lines), "b": "\n".join(lines[1:])}) == []
