# SPDX-License-Identifier: Apache-2.0
"""``make clean`` removes all that git is told not to see, and nothing else."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Of the lab, which removes it itself.
OF_THE_LAB = ".lab/"


def ignored() -> list[str]:
    """A path for each pattern of .gitignore."""
    lines = (ROOT / ".gitignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#") and line != OF_THE_LAB]
    return [re.sub(r"\[(.).*?\]", r"\1", pattern.replace("*", "some")) for pattern in patterns]


def test_nothing_that_is_ignored_is_left(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    kept = [tmp_path / name for name in ("Makefile", "debian/control", "doc/source/index.rst")]
    made = [
        tmp_path / path / "file" if path.endswith("/") else tmp_path / path for path in ignored()
    ]
    for file in (*kept, *made):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    subprocess.run(
        ["make", "clean", "LAB=true"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert sorted(file for file in tmp_path.rglob("*") if not file.is_dir()) == sorted(kept)
