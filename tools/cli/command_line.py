"""The command line of all tools: strict options, one-line errors and exit codes."""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_narrow.options import options
from onnx_narrow.options.option import Option
from tools.cli import interrupts, streams
from tools.cli.calls import call
from tools.cli.job import Job, parse
from tools.cli.parser import Parser, name_of
from tools.cli.paths import with_names
from tools.cli.shared_help import SAMPLES_BRIEF, SAMPLES_HELP
from transforms.files.runtime_message import is_of_runtime, said_by_runtime
from transforms.files.spelling import UsageError, spelling
from transforms.model.model_error import NothingToDoError

if TYPE_CHECKING:
    from logging import LogRecord

DONE, FAILED, NOTHING_DONE = 0, 1, 3

_SOURCES = ("model", "baseline", "quantized")
"""Options that name the source of a tool; each tool has one of them."""

_LONGEST = 4000
"""Most characters of a message: names in files may be of any length."""

_NARROW = 98
"""Columns of commands in ``--help``."""

_COLLECTIONS = 10_000, 20, 50
"""Thresholds of the garbage collection: with its defaults it takes a fifth of the time and frees little."""


def _placed(option: Option) -> str:
    """Return the main name of an option and the placeholder for its value."""
    return f"{option.names[0]} {option.written.split()[-1]}"


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(text.strip("\n") for text in texts if text)


def _command(line: str) -> str:
    """Return a command for a shell, indented, in several lines if it is long."""
    joined = re.sub(r"(--\S+) (?!-)", "\\1\0", f"  {line}")  # an option and its value stay together
    return " \\\n      ".join(textwrap.wrap(joined, _NARROW, break_on_hyphens=False)).replace("\0", " ")


def purpose_of(docstring: str | None) -> str:
    """Return the first line of a tool's docstring, without the command that shows its help."""
    return (docstring or "").partition("\n")[0].partition(": ``")[0].rstrip(".") + "."


@dataclass(frozen=True)
class Tool:
    """A tool, ``python -m tools.MODULE``, with the options of a job.

    Its help begins with the purpose, from the docstring (``words``) of the module, and the most common
    ``commands``, one line each, without the module; ``brief`` ends the short help, ``details`` the one with
    all options. ``why_not``: why options of a job cannot be combined.
    """

    module: str
    job: str
    words: str | None
    commands: str
    details: str
    brief: str = ""
    work: Callable[[Job], Any] = call
    why_not: Callable[[Job], str | None] = lambda job: None

    def parser(self) -> Parser:
        """Return the parser of the command line."""
        program = f"python -m tools.{self.module}"
        required = [_placed(option) for option in options(self.job).values() if option.is_required]
        lines = [_command(f"{program} {command}".rstrip()) for command in self.commands.splitlines()]
        return Parser(
            self.job,
            brief=_paragraphs(self.brief, SAMPLES_BRIEF if SAMPLES_HELP in self.details else ""),
            prog=program,
            usage=" ".join([program, *required, "[options]"]),
            description="\n".join([purpose_of(self.words), "", "usual commands:", *lines]),
            epilog=_paragraphs(self.brief, self.details),
        )

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Parse the options as a job, do the work, and turn any failure into one line on stderr.

        Returns 0 or the result of ``work`` when the work is done, 1 after an error in the input, the model or
        the machine, 3 when there is nothing to do or a target, metric or limit is not met, and 128 plus the
        number of a signal (130: Ctrl-C) that ended it, with no file half written. A usage error, also one
        that ``why_not`` or the API reports, exits through argparse with 2.
        """
        parser = self.parser()
        argv = with_names(parser, sys.argv[1:] if argv is None else argv)
        try:
            job = parse(parser, argv)
        except SystemExit:  # after --help
            streams.drop_unwritable()
            raise
        if reason := _two_spellings(parser, argv) or self.why_not(job):
            parser.error(reason)
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is first imported
        gc.set_threshold(*_COLLECTIONS)
        if job.verbose:
            _log_to_stderr()
        try:
            with interrupts.raised(), spelling(parser.spell):
                code = _work(parser, job, self.work)
                streams.drop_unwritable()
                interrupts.end(code)
        except KeyboardInterrupt as stopped:
            code = interrupts.leave(stopped)
            _fail(parser, job, "interrupted")
        return code


def _two_spellings(parser: argparse.ArgumentParser, argv: Sequence[str]) -> str | None:
    """Return the error for the first option that is given in two spellings: one would be ignored."""
    words = {word.partition("=")[0] for word in argv}
    for action in parser._actions:
        spellings = [name for name in action.option_strings if name in words]
        if len(spellings) > 1 and not isinstance(action, argparse.BooleanOptionalAction):
            return f"{spellings[0]} and {spellings[1]} are the same option: give one of them"
    return None


def _work(parser: Parser, job: Job, work: Callable[[Job], Any]) -> int:
    try:
        code = work(job)
        sys.stdout.flush()
    except UsageError as error:
        parser.error(str(error))
    except NothingToDoError as error:
        print(error)
        return NOTHING_DONE
    except BrokenPipeError as error:
        return _fail(parser, job, f"the reader of the output is gone: {_one_line(error)}")
    except (ValueError, OSError) as error:
        code = _fail(parser, job, _one_line(error) + _of_source(job, error))
        return NOTHING_DONE if _is(error, "transforms.search.target", "TargetError") else code
    except Exception as error:
        text = "not enough memory" if isinstance(error, MemoryError) else _one_line(error)
        kind = "" if is_of_runtime(error) else f" ({type(error).__name__})"
        return _fail(parser, job, f"{text}{kind}{_of_source(job, error)}")
    return code if isinstance(code, int) else DONE


def _fail(parser: argparse.ArgumentParser, job: Job, message: str) -> int:
    if job.verbose:
        traceback.print_exc()
    print(f"{name_of(parser)}: error: {_shown(message)}", file=sys.stderr)
    return FAILED


def _is(error: Exception, module: str, name: str) -> bool:
    """Return whether an error is of a class; where its module is not imported, none was raised."""
    home = sys.modules.get(module)
    return home is not None and isinstance(error, getattr(home, name))


def _of_source(job: Job, error: Exception) -> str:
    """Return the source file to append to an error that is about a model, or that names nothing."""
    about_model = _is(error, "transforms.model.read_model", "ModelError")
    in_own_words = re.search("'|--", str(error)) is not None and not isinstance(error, UnicodeError)
    if isinstance(error, OSError) or (isinstance(error, ValueError) and in_own_words and not about_model):
        return ""
    sources = [str(job.get(name)) for name in _SOURCES if job.get(name)]
    return (
        ""
        if not sources or any(Path(source).name in str(error) for source in sources)
        else f" (in '{sources[0]}')"
    )


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: '{error.filename}'" if error.filename else error.strerror
    return said_by_runtime(error)


def _shown(text: str) -> str:
    """Return text that is safe on a terminal: names come from files, and may contain control characters."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def details_once() -> Callable[[LogRecord], bool]:
    """Return a filter that lets each message of the level DEBUG pass once, and all others."""
    seen: set[tuple[str, str]] = set()

    def _is_new(record: LogRecord) -> bool:
        message = record.name, record.getMessage()
        if record.levelname == "DEBUG" and message in seen:
            return False
        seen.add(message)
        return True

    return _is_new


def _log_to_stderr() -> None:
    import logging

    from tqdm import tqdm

    class _BesideBar(logging.StreamHandler):
        def emit(self, record: logging.LogRecord) -> None:
            with tqdm.external_write_mode(sys.stderr):
                super().emit(record)

    handlers = [_BesideBar(sys.stderr)]
    handlers[0].addFilter(details_once())
    logging.basicConfig(level=logging.DEBUG, format="%(name)s: %(message)s", handlers=handlers)
    for noisy in ("matplotlib", "PIL", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
