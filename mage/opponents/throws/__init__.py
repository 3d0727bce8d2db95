"""Players of rock-paper-scissors: drawn players, fixed learners, and programs that people wrote."""

from mage.opponents.throws.learners import Bayes, PredictorRule
from mage.opponents.throws.players import Dirichlet, Markov, Reactive
from mage.opponents.throws.roshambo import RoShamBo

__all__ = ["Bayes", "Dirichlet", "Markov", "PredictorRule", "Reactive", "RoShamBo"]
