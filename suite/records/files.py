"""New files and new folders, without overwriting; regular files; folders in use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


def new_file(path: str | Path) -> TextIO:
    """Create a file, and its folder if that is missing. Returns the file, open for UTF-8 text.

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


def write_new(path: str | Path, text: str) -> None:
    """Write a new file. Raises FileExistsError; any other error leaves no file."""
    file = new_file(path)
    with remove_on_error(path), file:
        file.write(text)


@contextmanager
def remove_on_error(path: str | Path) -> Iterator[None]:
    """A context in which a new file or folder is filled. It is removed if an exception is raised inside.
    An OSError is raised again with the path in its message."""
    try:
        yield
    except BaseException as error:
        path = Path(path)
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
        if not isinstance(error, OSError):
            raise
        raise OSError(
            f"{path} cannot be written: {error.strerror or error}; nothing of it is left"
        ) from error


def require_regular_file(path: Path) -> Path:
    """Returns the path unchanged. Raises OSError for a device or a pipe: reading may never end."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError("expected a regular file or standard input, got a device or a pipe")
    return path


def remove_empty(path: str | Path) -> None:
    """Remove a file if it is empty."""
    path = Path(path)
    if path.is_file() and not path.stat().st_size:
        path.unlink()


def new_folder(folder: str | Path) -> Path:
    """Create a folder, and return its path. An empty folder may exist. Raises FileExistsError for
    anything else at this path."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(
            f"{folder} exists and is not an empty folder; name one that is absent or empty"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A context that locks a folder, if its file system has locks. Raises BlockingIOError if another
    process has locked it."""
    import fcntl  # not on Windows

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            advice = "wait for its end, or name a new folder"
            raise BlockingIOError(f"another process is at work on {folder}: {advice}") from error
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)
