"""Time and peak memory of a conversion against a plain load and save.

Run it from the project's root: ``python -m tests.benchmarks.bench_convert``.

Both read the same 200 MB transformer, each in a fresh process, one after the other, several times over; a
ratio is the median of the rounds. What is measured:

* **whole**: from starting the interpreter to its exit, so imports, checks, optimization and, for the
  conversion, fsync are inside; peak memory is the largest resident set of that process, imports included.
* **net**: the same less the time of the same command on the 40 KB digits model, which leaves what grows
  with the model. Peak memory is not netted: nobody's machine gets the imports back.

The files and Python's byte code are in their caches (a first round is not counted). This process holds no
model: on Linux a child's peak starts at what its parent held when it was started.

Start-up is the whole time of ``import ops`` and of ``--help`` of every tool. Nothing here fails when a target
is missed: times depend on the machine, so the numbers are printed beside the targets.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "tests" / "examples" / "digits.onnx"
COPY = "import onnx, sys; onnx.save(onnx.load(sys.argv[1]), sys.argv[2])"
TIME_TARGET, MEMORY_TARGET, START_TARGET = 2.0, 1.25, 0.5  # ratio, ratio, seconds

Command = Callable[[Path, Path], list[str]]


@dataclass(frozen=True)
class Cost:
    """What one process took: seconds of wall time, and MB (10^6 bytes) at its peak."""

    seconds: float
    megabytes: float


@dataclass(frozen=True)
class Costs:
    """What one command took in each round, and its time on a tiny model."""

    rounds: list[Cost]
    tiny: float

    @property
    def seconds(self) -> list[float]:
        """The whole time of each round."""
        return [cost.seconds for cost in self.rounds]

    @property
    def net(self) -> list[float]:
        """The time of each round that depends on the model's size."""
        return [cost.seconds - self.tiny for cost in self.rounds]

    @property
    def megabytes(self) -> list[float]:
        """The peak memory of each round."""
        return [cost.megabytes for cost in self.rounds]


def measure(arguments: list[str]) -> Cost:
    """Run ``python ARGUMENTS`` from the project's root to its end; raise CalledProcessError if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return Cost(seconds, usage.ru_maxrss * 1024 / 1e6)  # Linux counts KiB


def copy(source: Path, target: Path) -> list[str]:
    """Return the arguments of a plain load and save."""
    return ["-c", COPY, str(source), str(target)]


def convert(source: Path, target: Path) -> list[str]:
    """Return the arguments of a conversion."""
    tool = ["-m", "tools.convert_fp32_to_bf16", "--format", "with_cast", "--force"]
    return [*tool, "--input", str(source), "--output", str(target)]


def compare(model: Path, folder: Path, rounds: int) -> list[Costs]:
    """Run both commands alternately on ``model`` and then on the tiny one; the first round is not counted."""
    costs: dict[Command, list[Cost]] = {copy: [], convert: []}
    for _ in range(rounds + 1):
        for command, found in costs.items():
            found.append(measure(command(model, folder / f"{command.__name__}.onnx")))
    return [Costs(found[1:], _tiny(command, folder, rounds)) for command, found in costs.items()]


def _tiny(command: Command, folder: Path, rounds: int) -> float:
    target = folder / "tiny.onnx"
    return statistics.median(measure(command(DIGITS, target)).seconds for _ in range(rounds))


def conversion_lines(plain: Costs, converted: Costs) -> Iterator[str]:
    """Yield the table of the conversion: medians, then the ratios beside their targets."""
    yield f"{'median of ' + str(len(plain.rounds)):24}{'whole s':>10}{'net s':>10}{'peak MB':>10}"
    for name, costs in (("onnx.load + onnx.save", plain), ("convert --format with_cast", converted)):
        figures = (statistics.median(costs.seconds), statistics.median(costs.net))
        yield f"{name:26}{figures[0]:8.2f}{figures[1]:10.2f}{statistics.median(costs.megabytes):10.0f}"
    yield _verdict("ratio of whole time", _ratio(plain.seconds, converted.seconds), TIME_TARGET, "x")
    yield _verdict("ratio of net time", _ratio(plain.net, converted.net), TIME_TARGET, "x")
    yield _verdict("ratio of peak memory", _ratio(plain.megabytes, converted.megabytes), MEMORY_TARGET, "x")


def start_up_lines(rounds: int) -> Iterator[str]:
    """Yield the time of ``import ops`` and of each tool's ``--help`` beside the target."""
    starts = {"import ops": ["-c", "import ops"]}
    for tool in sorted((ROOT / "tools").glob("*.py")):
        if "__main__" in tool.read_text(encoding="utf-8"):
            starts[f"tools.{tool.stem} --help"] = ["-m", f"tools.{tool.stem}", "--help"]
    for name, arguments in starts.items():
        seconds = statistics.median(measure(arguments).seconds for _ in range(rounds))
        yield _verdict(name, seconds, START_TARGET, " s")


def _ratio(plain: list[float], converted: list[float]) -> float:
    return statistics.median(b / a for a, b in zip(plain, converted, strict=True))


def _verdict(name: str, value: float, target: float, unit: str) -> str:
    return f"{name:36}{value:6.2f}{unit}  target {target}{unit}: {'met' if value <= target else 'MISSED'}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Compare a conversion with a plain load and save.")
    parser.add_argument("--rounds", type=int, default=5, help="how often to run each (default: %(default)s)")
    parser.add_argument("--model", type=Path, help="an fp32 model to use instead of the generated one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = options.model
        if model is None:
            model = folder / "transformer.onnx"
            measure(["-m", "tests.benchmarks.transformer", str(model)])
        print(f"{model.name}: {model.stat().st_size / 1e6:.1f} MB, {os.cpu_count()} cores", flush=True)
        for line in conversion_lines(*compare(model.resolve(), folder, options.rounds)):
            print(line)
    for line in start_up_lines(options.rounds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
