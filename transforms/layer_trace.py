"""Sensitivities estimated in one pass over the data, for all layers and formats together.

With the output o of a model, the rounding of a layer's operands changes it, to first order, by
J (W dx + dW x), J being the derivative of o by what the layer makes. For v of random signs the expectation of
(v^T J e)^2 is |J e|^2, so that one gradient g = J^T v a sample is enough for any number of layers and formats
(Hutchinson's estimator, doi 10.1080/03610919008812866):

    harm = mean over samples of (<W^T g, dx> + <g x^T, dW>)^2, over the mean of |o|^2

Where a gradient can not be formed the error is taken to reach the outputs as it is: its share of what the
layer makes is its share of the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.metrics import sqnr_db
from transforms import dot_products, graph_proto, walk
from transforms.candidates import Candidate
from transforms.finetune_model import copy_graph
from transforms.gradients import add_gradients
from transforms.layer_problem import Layer, Unfit, layer_of
from transforms.layer_rule import LayerRule
from transforms.light_session import LightModel, open_light
from transforms.measured_sensitivity import Bench
from transforms.mixed_model import MixedModel, layers_of
from transforms.rounders import Rounder
from transforms.run_tasks import Progress
from transforms.sensitivity import Damage, Sensitivity

_LEAST_DRAWS = 32
"""Random vectors over all samples, at least: the estimate then has a standard error of a quarter."""
