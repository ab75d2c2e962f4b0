"""The worst group of channels of each output that has several, for the figure that is told of a model."""

from __future__ import annotations

import numpy as np

from ops.array_types import AnyArray, Feed, Float64Array
from transforms.judge.channel_groups import ChannelGroups
from transforms.judge.errors import Errors, energies, signals
from transforms.judge.reference import Reference


class WorstChannels:
    """Keeps the errors of the groups of channels of what is made of each feed of a reference."""

    def __init__(self, reference: Reference) -> None:
        """Keep nothing yet."""
        self._reference, self._groups = reference, reference.groups
        self._expected = {
            id(feed): made
            for feed, made in zip(reference.feeds, reference.made([*self._groups]), strict=True)
        }
        self._errors: dict[int, dict[str, Float64Array]] = {}

    def see(self, feed: Feed, made: Feed) -> None:
        """Keep the errors of what was made of a feed."""
        expected = self._expected[id(feed)]
        self._errors[id(feed)] = {
            name: energies(*(_numbered(groups, one[name]) for one in (expected, made)))
            for name, groups in self._groups.items()
        }

    def put_into(self, found: Errors) -> tuple[Errors, list[str]]:
        """Return errors in which an output has those of its worst group of channels, and which these are."""
        columns = {name: place for place, name in enumerate(self._reference.outputs)}
        errors, signal, words = found.errors.copy(), found.signal.copy(), list[str]()
        for name in self._groups.keys() & columns.keys():
            of_groups = np.array([self._errors[key][name] for key in self._expected])
            powers = np.array([signals(_numbered(self._groups[name], one[name])) for one in self._made])
            worst = int(np.argmax(of_groups.sum(0) / np.maximum(powers.sum(0), np.finfo(float).tiny)))
            errors[:, columns[name]], signal[:, columns[name]] = of_groups[:, worst], powers[:, worst]
            words.append(f"worst channels of '{name}': {self._groups[name].label(worst)}")
        return Errors(errors, signal, found.count), words

    @property
    def _made(self) -> list[Feed]:
        return list(self._expected.values())


def _numbered(groups: ChannelGroups, array: AnyArray) -> Feed:
    """Return groups of channels by number, of another shape as many as there are."""
    parts = groups.split(array)
    return {str(place): part for place, part in enumerate(parts)}
