"""The full range of int8 without zero points, for tensors that are never negative.

:mod:`transforms.full_range.shift_tensors` shifts tensors of a quantized model; fine-tuning starts with
:func:`transforms.full_range.share_shifts.on_full_range`. :mod:`transforms.full_range.recorded_shifts` reads
the recorded shifts of a model.
"""
