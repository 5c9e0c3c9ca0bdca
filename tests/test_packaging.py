"""The wheel builds without the network and works from another folder."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import bsvi

ROOT = Path(bsvi.__file__).parent.parent


def test_the_wheel_builds_and_is_importable_elsewhere(tmp_path):
    source = tmp_path / "source"
    listed = subprocess.run(
        [
            "git",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
            "bsvi",
            "pyproject.toml",
            "README.md",
            "LICENSE",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    names = listed.stdout.split("\0")[:-1] if listed.returncode == 0 else []
    names = names or [
        str(p.relative_to(ROOT))
        for p in [*ROOT.glob("bsvi/**/*.*"), *map(ROOT.joinpath, ("pyproject.toml", "README.md", "LICENSE"))]
    ]
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(tmp_path), str(source)]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("bsvi-*.whl")
    contents = zipfile.ZipFile(wheel).namelist()
    assert "bsvi/py.typed" in contents
    assert not any(name.startswith(("tests", "benchmarks")) for name in contents)
    site = tmp_path / "site"
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", "--target", str(site), str(wheel)], check=True)
    code = "import bsvi; print(bsvi.__file__, bsvi.__version__); bsvi.objective('bsvi-sir')"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    assert told.stdout.split() == [str(site / "bsvi" / "__init__.py"), bsvi.__version__]


def test_versions_agree_and_torch_is_pinned_without_a_local_build():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == bsvi.__version__
    assert f"version: {bsvi.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert f"## {bsvi.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    for name in ("constraints.txt", "constraints-adapters.txt"):
        pins = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
        assert "torch==2.13.0" in pins
        assert all("==" in line and "+" not in line and "://" not in line for line in pins)
