"""Mixtures of experts: the networks of the experts, and how a router weighs them."""
