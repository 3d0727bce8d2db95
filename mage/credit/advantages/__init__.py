"""Menu of advantage estimators. One file per estimator; `base.py` is the contract."""
