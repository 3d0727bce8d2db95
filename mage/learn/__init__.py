"""Floor 7: samples in, new weights out."""
