"""Moves: changes of a scheme that are decided by the outputs on samples, one move in each file.

A move proposes candidates; :mod:`transforms.moves.improve` tries one move after the other and keeps what the
judge accepts (:class:`transforms.judge.errors.Gain`).
"""
