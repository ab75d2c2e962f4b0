"""A strict parser: one-line errors, ``--help`` that fits a screen, and ``--help-all`` with every option."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import textwrap
from collections.abc import Iterable
from typing import Any, NoReturn

from onnx_narrow.options import JOBS, options
from onnx_narrow.options.option import DETAILS, USUAL, Option
from tools.cli.option_values import reader
from transforms.files.spelling import spelled, spelling

_WIDEST, _HELP_AT = 110, 32
"""Columns of ``--help``, and the one in which descriptions of options begin."""


_OF_OTHERS = {"--device": "--provider", "--gpu": "--provider", "--batch_size": "--batch-size"}
"""Names of options in other tools, with ours."""


_MANY = ("Sequence[str]", "Mapping", "Assignments")
"""Types of options that may be repeated."""


class Parser(argparse.ArgumentParser):
    """A strict parser with one-line errors."""

    def __init__(self, job: str, *, brief: str = "", **settings: Any) -> None:
        """Take the job, whose options are in the table, and the settings of any parser.

        ``brief``: the end of the short ``--help``.
        """
        super().__init__(
            **settings,
            allow_abbrev=False,
            add_help=False,
            formatter_class=_Help,
            argument_default=argparse.SUPPRESS,
        )
        self.job, self.brief = job, brief
        for title, members in _groups(options(job).values()).items():
            group = self.add_argument_group(title)
            for option in members:
                group.add_argument(*option.names, **self._settings(option))
        group.add_argument("-h", "--help", action=_ShortHelp, help="show the usual options and exit")
        group.add_argument("--help-all", action="help", help="show all options, with details, and exit")

    def _settings(self, option: Option) -> dict[str, Any]:
        """Return the arguments of argparse for an option."""
        with spelling(self.spell):
            settings: dict[str, Any] = {"dest": option.name, "help": spelled(option.help)}
        if option.takes == "both":
            return {**settings, "action": argparse.BooleanOptionalAction}
        if option.kind.annotation == "bool":
            return {
                **settings,
                "action": "store_false" if option.names[0].startswith("--no-") else "store_true",
            }
        metavar = [word for word in option.written.split() if not word.startswith("--")]
        settings |= {"metavar": metavar[0]} if metavar else {}
        settings |= {"choices": option.kind.choices} if option.kind.choices else {}
        settings |= {"required": True} if option.is_required else {}
        if option.takes:
            settings |= {"nargs": "+", "action": "extend" if option.takes == "extend" else "store"}
        elif option.kind.annotation.startswith(_MANY):
            settings["action"] = "append"
        return {**settings, "type": reader(option)}

    def spell(self, name: str, value: str = "") -> str:
        """Return an option as it is written on the command line, by the name of its keyword."""
        jobs = (self.job, *JOBS)  # an option that this job lacks is spelled as in another
        words = next((options(job)[name].names for job in jobs if name in options(job)), ())
        word = words[0] if words else f"--{name.replace('_', '-')}"
        if value == "False":
            return word if word.startswith("--no-") else f"--no-{word.removeprefix('--')}"
        return f"{word} {value}".rstrip()

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 and one line, as any other error does; an option is called by its main name."""
        for action in self._actions:
            message = message.replace("/".join(action.option_strings), action.option_strings[0])
        self.exit(2, f"{name_of(self)}: error: {message}{self._meant(message)} (see --help)\n")

    def _meant(self, message: str) -> str:
        """Return the suggestion for an unknown option or value, in words."""
        from ops.legal_names import did_you_mean  # ops needs time to import

        label, unknown, words = message.partition("unrecognized arguments: ")
        if unknown:
            name = words.split()[0].partition("=")[0]
            legal = [option for action in self._actions for option in action.option_strings]
            if _OF_OTHERS.get(name) in legal:
                return f", did you mean '{_OF_OTHERS[name]}'?"
            return did_you_mean(name, legal) if name.startswith("-") else ""
        value = message.partition("invalid choice: '")[2].partition("'")[0]
        option = label.removeprefix("argument ").partition(":")[0]
        chosen = [action.choices for action in self._actions if option in action.option_strings]
        return did_you_mean(value, map(str, chosen[0])) if value and chosen and chosen[0] else ""

    def format_short_help(self) -> str:
        """Return what ``--help`` prints: the purpose, usual commands and the most usual options."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        (usual,) = [group for group in self._action_groups if group.title == USUAL and group._group_actions]
        formatter.start_section(USUAL)
        formatter.add_arguments(usual._group_actions)
        formatter.add_arguments(action for action in self._actions if "--help-all" in action.option_strings)
        formatter.end_section()
        formatter.add_text(self.brief)
        return formatter.format_help()

    def print_help(self, file: Any = None) -> None:
        """Print the help and ignore a closed pipe: Python 3.11.2 raises BrokenPipeError, 3.11.7 does not."""
        with contextlib.suppress(OSError):
            super().print_help(file)


class _ShortHelp(argparse.Action):
    """``--help``: print the short help and leave."""

    def __init__(self, option_strings: list[str], **settings: Any) -> None:
        """Take the settings of any action: the option has no value."""
        super().__init__(option_strings, **{**settings, "dest": "help", "nargs": 0})

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Print and leave."""
        assert isinstance(parser, Parser)
        with contextlib.suppress(OSError):
            print(parser.format_short_help(), end="")
        parser.exit()


class _Help(argparse.RawDescriptionHelpFormatter):
    """Lines as they are written, and most options on a line of their own."""

    def __init__(self, prog: str, **settings: Any) -> None:
        """Use the width of the terminal, up to one that is easy to read."""
        width = min(shutil.get_terminal_size().columns, _WIDEST) - 2
        super().__init__(prog, **{"max_help_position": _HELP_AT, "width": width, **settings})

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Return words in lines; a name with hyphens stays in one."""
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def _groups(options: Iterable[Option]) -> dict[str, list[Option]]:
    """Return the options of each group, in the order of ``--help``."""
    groups: dict[str, list[Option]] = {}
    for option in options:
        groups.setdefault(option.group, []).append(option)
    titles = [
        *(title for title in groups if title not in DETAILS),
        *(title for title in DETAILS if title in groups),
    ]
    return {title: groups[title] for title in titles}


def name_of(parser: argparse.ArgumentParser) -> str:
    """Return the name of a tool as errors give it."""
    return parser.prog.removeprefix("python -m ")
