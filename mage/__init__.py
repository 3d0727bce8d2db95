"""MAGE: language-model agents that learn during play, trained by reinforcement learning over whole meta-episodes."""

__version__ = "0.1.0"
