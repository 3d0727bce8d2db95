"""Menu: how returns become advantages. One file, one estimator; `base.py` is the contract."""
