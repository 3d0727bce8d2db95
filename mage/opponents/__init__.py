"""Menu of opponents. `base.py` is the contract and the weighted population."""
