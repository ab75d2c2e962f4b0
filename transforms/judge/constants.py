"""All numbers that decide about models: gains and prices of changes, samples, comparisons, and the budget.

None is derived from a single model. Each names the command that shows its effect: change the number, and
compare the tables before and after. ``accuracy``: ``python -m tests.benchmarks.accuracy_table measure FILE``
and ``compare BEFORE AFTER``, with the presets named; ``time``: ``python -m tests.benchmarks.bench_quantize``.
Numbers that guard arithmetic or memory are in the modules that use them.
"""

from __future__ import annotations

# Gains that changes must have

WORTH = 0.1
"""Least gain of any change, in dB: less cannot be seen on other data. ``accuracy --presets A8W8 U8S8``"""

MAY_LOSE = 0.5
"""Largest loss of an output in dB, and of views while outputs gain: half a dB is not noticed. A change that
adds nodes has to gain as much, and a tensor stays in float if twice as much is lost without it.
``accuracy --presets A8W8 U8S8``"""

ONE_SAMPLE = 10.0
"""Largest change in dB of a ratio by leaving out one sample, in its standard error: a sample with all of the
error counts as nine tenths of it, since the share of such samples in other data is not known.
``quantize --min-sqnr`` against the SQNR on data used for neither"""

CERTAINTY = 0.5
"""Standard errors that the gain of headroom has to exceed: if one sample of many is clipped, the gain is as
uncertain as it is large, while the cost of wider steps is the same on all samples.
``accuracy --presets A8W8 U8S8``"""

CLEAR = 2.0
"""Standard errors that the gain of one scale for a weight has to exceed over one for each channel, which is
finer on all data. ``accuracy --presets U8S8 --samples 8 32``"""

PRICE = 3.0
"""Least gain in dB of each tensor in float: it halves the error. Twice that for formats without ranges, whose
errors come from all tensors. ``accuracy --presets A8W8 BFP16 FP16``"""

PER_PERCENT = 0.3
"""Least gain in dB of layers in float for each percent of the model's bytes that they add: the table
"Layers in float for the outputs" in docs/measurements.md. ``tests.benchmarks.bench_lossy --per-percent``"""

ONE_OF = 3
"""At most one of so many layers stays float for the outputs: with more, the model is hardly quantized."""

DAMPINGS = (1.0, 0.01)
"""Damping of the shift towards float outputs in fitting weights, for long sums over few rows as in decoders,
and for convolutions: held-out samples choose one for each layer. ``accuracy --presets W4A8 MX6``"""

DIVERGED = 0.5
"""Largest KL divergence of a useful language model, in nats per token: the perplexity is at most exp(0.5) =
1.65 times that of the float model. Weights in 4 bits without samples lose half as much, in half of the bytes
of 8-bit weights. ``tools.evaluate --logits`` prints both figures."""

# Which samples

MOST_SAMPLES = 32
"""Most samples that models are compared on: more take time, and make gains little more certain; twice as many
fit weights. ``accuracy --samples 8 32``"""

FEWEST = 2
"""Fewest samples that judge: one has no standard error."""

ENOUGH = 16
"""Samples whose rows propose moves of outliers, that a summary reports on, and that show the scatter of
errors of tuned models: more change little. ``accuracy --presets MX6 --stages tuned``"""

SEARCHED_ON = 8
"""Samples on which tensors are searched, and in which masks are looked for; all samples decide.
``accuracy --presets A8W8``"""

FEW_SAMPLES = 4
"""Samples that show the sizes of channels, the fewest for moves of outliers, and those that measure the error
of the final outputs."""

GOAL_EVERY = 4
"""One of so many samples judges a target if samples also fit weights, and at least ``FEW_SAMPLES`` judge; of
fewer samples, a larger share does. ``quantize --min-sqnr`` against the SQNR on other data"""

SPARED = 5
"""One of so many samples decides nothing, or is held out of few. With ``SPARED * FEWEST`` samples and more,
some decide nothing, and half of them judge fitted weights: with fewer, choices would lose more than a figure
for the result is worth. ``accuracy --presets W4A8 MX6 --samples 8 32``"""

TEXTS_EVERY = 8
"""One of so many texts decides nothing, of few texts one: it has a row for each token.
``tools.evaluate --logits`` against the KL divergence in the summary"""

PASSES = 2
"""How often a recurrent model runs through the samples, since its errors accumulate over steps."""

# What is compared

FEW_NUMBERS = 32
"""Elements of an output below which its error on eight samples has a standard error above half a dB."""

MOST_VIEWS = 4
"""Most tensors that are compared in addition to an output of few numbers."""

HIDING = 10
"""Ratio of the largest values of channels of an output that makes them separate groups: the same relative
error of the small ones is 20 dB below that of the large ones."""

FINE = 40.0
"""SQNR of outputs in dB from which on no tensors are searched: an error of 1 % is not noticed."""

USELESS = 10.0
"""SQNR of outputs in dB below which they are of no use; for tokens, 10 dB are 0.1 nats. Above, errors of
blocks of few bits come from all tensors alike. ``accuracy --presets BFP16 MX6``"""

HEADROOM = 4.0
"""Factor by which values of float16 tensors may exceed those of the samples. ``accuracy --presets FP16``"""

ROWS = 256
"""Rows of a tensor, of all samples together, from which layers propose moves of outliers."""

# The budget: the unit of time is that of rounding one number in a quantized model

EFFORTS = {"low": 0.25, "normal": 1.0, "high": 4.0}
"""Factor of the budget of runs, by name. ``tests.benchmarks.bench_lossy --effort high``"""

PAID = 3e8
"""Fixed part of the budget, about two seconds. ``time``"""

FLOAT_RUNS = 5
"""Budget for each sample, in runs of the float model; for a text, of many tokens, in runs of the quantized
model. ``time``"""

FLOAT = 4
"""Runs of the float model in the time of one run of the quantized model. ``time``"""

PRODUCTS = 128
"""Multiplications of a layer in one unit of time. ``time``"""

NODE_RUN = 1_800
"""Time of a node in each run. ``time``"""

NODE_OPENED = 200_000
"""Time of a node in a plan, a copy and a session. ``time``"""

WEIGHT = 2
"""Time of rounding and copying an element of a weight. ``time``"""

CANDIDATES = 8
"""Candidates of all moves for most models, and the number of tensors of a language model that are first left
in float. ``accuracy``"""

MOST_MODELS = 24
"""Most candidates of a search by halves: finding one of a thousand tensors takes 20. ``accuracy``"""

LAYER_RUNS = (48, 256)
"""Bounds of the runs that rank layers which may stay float; the budget decides in between.
``tests.benchmarks.bench_lossy``"""

MOST_COUNTED = 400_000_000
"""Most elements of all samples together for which histograms are computed although no rule needs them, to try
MSE. ``time``"""

MOST_WEIGHTS = 1 << 31
"""Bytes of weights beyond which rules decide: candidates hold up to three copies of the weights."""
