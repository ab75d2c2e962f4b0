"""All codes of int8 for tensors of unequal ends, which use a part of them without a zero point.

:mod:`transforms.all_codes.use_all_codes` shifts tensors of a quantized model that are never negative, and
:mod:`transforms.all_codes.shift_spans` others. Quantizing begins with
:mod:`transforms.moves.full_range`, which asks the outputs, and fine-tuning with
:func:`transforms.all_codes.share_shifts.on_all_codes`. :mod:`transforms.all_codes.recorded_shifts` reads what
a model says of its shifts.
"""
