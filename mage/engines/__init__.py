"""Menu: what turns prompts into replies. `base.py` has the contract and a scripted engine."""
