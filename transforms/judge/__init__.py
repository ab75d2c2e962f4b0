"""Judging quantized models by their outputs on samples: one holder of samples, one error, one rule.

* :mod:`transforms.judge.judge`: samples, what the float model makes of them, and errors of other models;
* :mod:`transforms.judge.errors`: errors of outputs, the gain of one model over another, and the rule by which
  a change is accepted;
* :mod:`transforms.judge.budget`: how many runs there is time for;
* :mod:`transforms.judge.constants`: all numbers that decide;
* :mod:`transforms.judge.decisions`: the record of what was tried, and of how good the outputs are;
* :mod:`transforms.judge.sample_roles`: which samples judge, check, search, rank and tune.
"""
