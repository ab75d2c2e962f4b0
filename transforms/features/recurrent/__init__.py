"""LSTM, GRU and RNN: weights stored in rows of integers, and LSTMs that multiply integers at run time."""
