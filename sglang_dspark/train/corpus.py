"""Text that any machine has: the sources of the Python standard library that runs this very program.

The demo target learns to write from them. Nothing of them is copied into this repository. Whole files are held out, by
a hash of their path, so no line of a held-out file has been trained on (short idioms recur in all Python, of course).
"""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

# One file in this many is held out.
HELD_OUT_SHARE = 20
# Not prose a person wrote as code: generated tables, and tests, which are as long as all the rest and all alike.
SKIPPED_FOLDERS = frozenset({"site-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "__pycache__"})


def standard_library() -> Path:
    """The folder of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def source_files(root: Path | None = None) -> list[Path]:
    """The library's modules, in the order of their names."""
    root = root or standard_library()
    found = [path for path in root.rglob("*.py") if not SKIPPED_FOLDERS & set(path.relative_to(root).parts[:-1])]
    if not found:
        raise FileNotFoundError(
            f"asked for Python sources below {root}, found none: this interpreter ships without them; name a folder of "
            "text files instead"
        )
    return sorted(found)


def is_held_out(path: Path, root: Path | None = None) -> bool:
    """Whether a file is kept for measuring; decided by its path alone, so a new Python version moves few files."""
    name = path.relative_to(root or standard_library()).as_posix()
    return hashlib.sha256(name.encode()).digest()[0] % HELD_OUT_SHARE == 0


def read_texts(held_out: bool, root: Path | None = None) -> list[str]:
    """The text of every training file, or of every held-out one."""
    return [
        path.read_text(encoding="utf-8", errors="replace")
        for path in source_files(root)
        if is_held_out(path, root) == held_out
    ]
