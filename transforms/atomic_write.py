"""Files that appear whole or not at all, several of them together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from transforms import temporary


@contextmanager
def replacing(*paths: Path) -> Iterator[list[Path]]:
    """Yield a path to write to for each path, and rename them in that order when the block ends well.

    When it does not, or a rename fails or is interrupted, every path is as it was before and nothing else is
    left in the folders. An OSError without a file name gets that of the first path.
    """
    temporaries = [_beside(path, "tmp") for path in paths]
    with temporary.noted(*temporaries):
        try:
            yield temporaries
            _rename(list(zip(temporaries, paths, strict=True)))
        except OSError as error:
            if error.filename is None and error.errno is not None:
                raise OSError(error.errno, error.strerror, str(paths[0])) from error
            raise
        finally:
            for path in temporaries:
                path.unlink(missing_ok=True)


def _rename(pairs: list[tuple[Path, Path]]) -> None:
    backups: list[tuple[Path, Path]] = []
    try:
        for written, path in pairs:
            if len(pairs) > 1:  # one rename alone is atomic
                backups.append((path, _back_up(path)))
            written.replace(path)
    except BaseException:
        for path, backup in reversed(backups):
            if backup.exists():
                backup.replace(path)
            else:
                path.unlink(missing_ok=True)
        raise
    finally:
        for _, backup in backups:  # still there after a rename onto a name of the same file
            backup.unlink(missing_ok=True)


def _back_up(path: Path) -> Path:
    """Give an existing file a second name, so that it is never absent; return that name, used or not."""
    backup = _beside(path, "old")
    with suppress(FileNotFoundError):
        try:
            backup.hardlink_to(path)
        except PermissionError:  # a file system without hard links
            path.rename(backup)
    return backup


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{ending}")
