"""Menu: the worlds an agent can be trained in. One file, one environment; `base.py` is the contract."""
