"""Judge quantized models by the error of their outputs on samples, by one rule for all changes.

* :mod:`transforms.judge.judge`: samples, outputs of the float model, and errors of other models;
* :mod:`transforms.judge.errors`: errors of outputs, the gain of one model over another, and the rule by which
  a change is accepted;
* :mod:`transforms.judge.budget`: the number of runs there is time for;
* :mod:`transforms.judge.constants`: all numbers that decide;
* :mod:`transforms.judge.decisions`: the record of candidates, and of the error of the final outputs;
* :mod:`transforms.judge.sample_roles`: which samples judge, check, search, rank and tune.
"""
