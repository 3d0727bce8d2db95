"""Menu: who sits on the other side. `base.py` is the contract and the weighted population."""
