"""Convert graphs to low precision according to a scheme or conversion options: prepare, plan, write.

Nothing is decided here: :mod:`transforms.pipelines` does that.
"""
