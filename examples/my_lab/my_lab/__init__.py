"""An outside package for MAGE: the game of Nim and everything to train an agent on it."""
