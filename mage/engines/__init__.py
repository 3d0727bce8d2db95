"""Menu: what turns prompts into replies. `base.py` is the contract and holds the scripted engine of the tests."""
