"""Exact answers on game trees: ceilings, bounds, best responses, scores."""
