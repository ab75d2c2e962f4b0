"""All numbers that decide about models: what is compared, what a change has to bring, what may be tried.

None is derived from one model. Each names the command that shows what it does: change the number, and compare
the tables before and after. ``accuracy``: ``python -m tests.benchmarks.accuracy_table measure FILE`` and
``compare BEFORE AFTER``, with the presets named; ``time``: ``python -m tests.benchmarks.bench_quantize``.
Numbers that guard arithmetic or memory stand where they are used.
"""

from __future__ import annotations

# What a change has to bring

WORTH = 0.1
"""dB that any change has to bring: less cannot be seen on other data. ``accuracy --presets A8W8 U8S8``"""

MAY_LOSE = 0.5
"""dB that an output may lose, and views while outputs gain: half a dB is seen by nobody. What adds nodes has
to bring as much, and twice that is lost without a tensor in float that is needed beside others.
``accuracy --presets A8W8 U8S8``"""

ONE_SAMPLE = 10.0
"""dB by which one sample may change a ratio where its standard error is told: one that holds all of the error
counts as nine tenths of it, as nobody knows how many of its kind there are.
``quantize --min-sqnr`` beside the SQNR on data that neither had"""

CERTAINTY = 0.5
"""Standard errors that headroom has to gain: one sample of many is cut off, and its gain is uncertain by
all of it, while what wider steps cost is the same on all. ``accuracy --presets A8W8 U8S8``"""

CLEAR = 2.0
"""Standard errors that one scale for a weight has to gain over one for each channel, which is finer on all
data. ``accuracy --presets U8S8 --samples 8 32``"""

PRICE = 3.0
"""dB that each tensor in float has to bring: it halves the error. Of formats without ranges, whose errors
come from everywhere, twice that: a quarter is left. ``accuracy --presets A8W8 BFP16 FP16``"""

PER_PERCENT = 0.3
"""dB that layers in float have to bring for each percent of the model's bytes that they add: the table
"Layers in float for the outputs" in docs/measurements.md. ``tests.benchmarks.bench_lossy --per-percent``"""

ONE_OF = 3
"""One of so many layers at most stays float for the outputs: with more, the model is another one."""

DAMPINGS = (1.0, 0.01)
"""Damping of the shift towards float outputs where weights are rounded by outputs, of long sums over few rows
as in decoders, and of convolutions: held-out samples choose one for each layer.
``accuracy --presets W4A8 MX6``"""

DIVERGED = 0.5
"""Nats by which probabilities of a token may differ from the float model's for a language model to be of use:
the perplexity is at most exp(0.5) = 1.65 times that of the float model. Weights in 4 bits without samples
lose half as much, in half of the bytes of 8-bit weights. ``tools.evaluate --logits`` tells both figures."""

# Which samples

MOST_SAMPLES = 32
"""Samples that models are compared on: more take time, and make gains little more certain; twice as many fit
weights. ``accuracy --samples 8 32``"""

FEWEST = 2
"""Samples without which nothing is judged: one has no standard error."""

ENOUGH = 16
"""Samples whose rows layers look at, and that show the scatter of errors of tuned models: more change little.
``accuracy --presets MX6 --stages tuned``"""

SEARCHED_ON = 8
"""Samples that a search for tensors runs, and in which masks are looked for; all of them decide.
``accuracy --presets A8W8``"""

FEW_SAMPLES = 4
"""Samples that show how large channels are, without which no layer is asked for its outliers, and that show
at the end how good the outputs are."""

GOAL_EVERY = 4
"""Of so many samples, the last judges whether a goal is met where samples round weights, if that are
``FEW_SAMPLES``; of fewer samples more of them do. ``quantize --min-sqnr`` beside the SQNR on other data"""

SPARED = 5
"""One of so many samples is spared, or held out of few. From ``SPARED * FEWEST`` samples on some decide
nothing, and half of them judge fitted weights: choices by fewer would be worse than no figure is.
``accuracy --presets W4A8 MX6 --samples 8 32``"""

TEXTS_EVERY = 8
"""One of so many texts is spared, of few texts one: it has a row for each token.
``tools.evaluate --logits`` beside the KL that the summary tells"""

PASSES = 2
"""How often a recurrent model runs through the samples, for its errors take steps to add up."""

# What is compared

FEW_NUMBERS = 32
"""Numbers of an output, below which eight samples tell its error with a standard error above half a dB."""

MOST_VIEWS = 4
"""Tensors that are compared beside an output of few numbers."""

HIDING = 10
"""How many times as large the numbers of some channels of an output are as those of others that count by
themselves: the same relative error of the small ones is 20 dB below that of the large ones."""

FINE = 40.0
"""dB of outputs from which on no tensor is looked for: an error of 1 % is not seen in any output."""

USELESS = 10.0
"""dB below which outputs are of no use; of tokens, 10 dB are 0.1 nats. Above, blocks of few bits lose
everywhere, no tensor stands out. ``accuracy --presets BFP16 MX6``"""

HEADROOM = 4.0
"""How many times as large numbers of float16 may be that the samples do not have.
``accuracy --presets FP16``"""

ROWS = 256
"""Rows of a tensor, of all samples together, by which layers propose moves of outliers."""

# What there is time for: it is counted in numbers that a quantized model rounds

EFFORTS = {"low": 0.25, "normal": 1.0, "high": 4.0}
"""Times as many runs, by name. ``tests.benchmarks.bench_lossy --effort high``"""

PAID = 3e8
"""About two seconds, beside what the samples pay for. ``time``"""

FLOAT_RUNS = 5
"""Runs of the float model that each sample pays for; a text, of many tokens, for as many of the quantized
model. ``time``"""

FLOAT = 4
"""Runs of the float model in the time of one of the quantized model. ``time``"""

PRODUCTS = 128
"""Products of a layer in the time of one number. ``time``"""

NODE_RUN = 1_800
"""Numbers in the time that a node takes at every run. ``time``"""

NODE_OPENED = 200_000
"""Numbers in the time that a node takes in a plan, a copy and a session. ``time``"""

WEIGHT = 2
"""Numbers in the time of rounding and copying a number of a weight. ``time``"""

CANDIDATES = 8
"""Candidates that the moves have for most models, and tensors of a language model that are left in float
first. ``accuracy``"""

MOST_MODELS = 24
"""Candidates of a search by halves: finding one of a thousand tensors takes 20. ``accuracy``"""

LAYER_RUNS = (48, 256)
"""Runs in which layers are ranked that may stay float: as many as there is time for, within these bounds.
``tests.benchmarks.bench_lossy``"""

MOST_COUNTED = 400_000_000
"""Numbers of all samples up to which histograms are made although no rule needs them: MSE is tried then.
``time``"""

MOST_WEIGHTS = 1 << 31
"""Bytes of weights beyond which rules decide: each kind of them is another copy, three at once."""
