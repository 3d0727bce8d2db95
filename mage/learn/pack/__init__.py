"""Packing of training rows: every shared prefix is computed once."""
