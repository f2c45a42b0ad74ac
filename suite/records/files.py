"""New files and new folders, without overwriting."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO


def new_file(path: str | Path) -> TextIO:
    """Create a file and open it for UTF-8 text; create its folder if it is missing.

    Raises FileExistsError if the file exists.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return path.open("x", encoding="utf-8", newline="\n")
    except FileExistsError:
        raise FileExistsError(
            f"{path} exists and is not overwritten; remove it or name another file"
        ) from None


def remove_empty(path: str | Path) -> None:
    """Remove a file if it is empty."""
    path = Path(path)
    if path.is_file() and not path.stat().st_size:
        path.unlink()


def new_folder(folder: str | Path) -> Path:
    """Create a folder. Raises FileExistsError if it exists and is not empty."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(
            f"{folder} exists and is not an empty folder; name one that is absent or empty"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder
