"""The comparison of a model with the float model, once nothing changes its numbers any more, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from tools.cli.said import warn
from tools.jobs import reach
from tools.jobs.quantize_options import QuantizeJob
from tools.jobs.quantized import Made, check_mixed
from tools.summaries import running
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.pipelines.check_outputs import check_outputs
from transforms.pipelines.first_run import FirstRun
from transforms.precision.held_out import HeldOut


@dataclass(frozen=True)
class Comparison:
    """What a quantized model is compared on: ``apart`` are samples that its target is judged on.

    ``always``: else only what was changed after all that has measured it.
    """

    job: QuantizeJob
    data: CalibrationData
    apart: HeldOut | None
    always: bool

    def __call__(self, made: Made, graph: gs.Graph, first: FirstRun) -> bool:
        """Compare a model as it is written, which goes into the record, and warn of poor outputs.

        Returns whether it was compared. Raises ValueError for a language model of no use, and for one that
        misses its target now.
        """
        job, changes = self.job, changed_last(self.job)
        if not (self.always or changes or first.kept):
            return False
        if changes and first.why_not is not None:
            warn(f"Warning: outputs not compared, for the model does not run here: {first.why_not}")
            return True
        float_graph = made.float_graph()
        outputs = check_outputs(float_graph, graph, self.data, made.done.decisions)
        ways = list(_more_bits(job))
        if outputs and outputs.is_diverged:
            alone = made.scheme.format(made.scheme.activation) is None
            weight = str(made.scheme.weight) if alone else ""
            raise ValueError(running.useless(outputs, job.config, weight=weight, ways=ways))
        if outputs:
            about = outputs.error, outputs.where, job.config
            for line in running.poor(*about, of_tokens=outputs.of_tokens, ways=ways):
                warn(line)
        if changes or first.kept:
            reach.check_target(float_graph, graph, self.apart, job)
            check_mixed(made.mixed, graph)
        return True


def changed_last(job: QuantizeJob) -> bool:
    """Return whether a job asks for changes of numbers after all choices."""
    return bool(job.matmul_nbits or job.embeddings or job.kv_cache)


def _more_bits(job: QuantizeJob) -> Iterator[str]:
    """Yield how the last changes leave more of the outputs."""
    if job.kv_cache == "int4":
        yield "--kv-cache int8 has more bits for caches"
    elif job.kv_cache:
        yield "without --kv-cache caches stay float"
    if job.embeddings == "int4":
        yield "--embeddings int8 has more bits for embeddings"
