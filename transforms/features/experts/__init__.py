"""Mixtures of experts: the experts' networks and the router's weights of them."""
