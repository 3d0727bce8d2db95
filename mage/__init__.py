"""MAGE: language-model agents that learn during play, trained over whole meta-episodes."""

__version__ = "0.1.0"
