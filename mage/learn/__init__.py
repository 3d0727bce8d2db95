"""Learning: samples in, new weights out. Read learner.py, loss.py, trainable.py, then pack/."""
