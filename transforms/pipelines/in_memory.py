"""The list of steps from a float graph to a quantized one."""

from __future__ import annotations

from transforms.pipelines.build import build
from transforms.pipelines.decide import decide
from transforms.pipelines.fit import fit
from transforms.pipelines.measure import measure
from transforms.pipelines.prepare import prepare
from transforms.pipelines.probe import probe
from transforms.pipelines.steps import Step

IN_MEMORY: tuple[Step, ...] = (prepare, probe, measure, decide, build, fit)
"""Prepare the graph, measure and decide on samples, write it, and round weights of few bits by outputs."""
