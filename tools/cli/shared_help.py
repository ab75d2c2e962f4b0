"""Parts of ``--help-all`` that tools share."""

from __future__ import annotations

SAMPLES_HELP = """\
samples: a folder of .npz files with one array per input name; of .npy files, for models with one input, each
with a batch or a sample without its batch dimension; of .png, .jpg and .jpeg files, for models with one image
input; of .npy files of tokens, a text or one in each row, for language models: masks, positions and empty
caches are made. Or one .npy or .npz file with the samples along the first axis of its arrays. Numbers of
another type are cast where all keep their values.

images become (pixel - mean) / std, with pixels from 0 to 255, in a batch of one:
  --preprocess mobilenet    --mean 127.5 --std 127.5                                  -1..1
  --preprocess zero-one     --std 255                                                 0..1
  --preprocess imagenet     --mean 123.675,116.28,103.53 --std 58.395,57.12,57.375    torchvision
Size, channels and layout follow from the shape of the model's input if it is fixed."""

SAMPLES_BRIEF = """\
samples: a folder of .npz files with one array per input name, of .npy files or images for models
with one input, of .npy files of tokens for language models; or one such .npy or .npz file with all."""

GATE_HELP = """\
--metric with --min-metric or --max-loss sets the bound of a metric on held-out samples, which the metric less
its standard error must meet; as few layers as possible are kept in float for it. Where none are enough, no
file is written, the exit code is 3, and one line names the metric, its value and interval, the bound and the
layers at fault. The function gets a list with a dictionary of arrays for each sample, the outputs by name,
and by parameters of these names the same of the float model (expected), the inputs, and the places of the
samples in the data (places), for labels. It returns one number, or one for each sample; higher is better."""
