"""How fast MAGE is against the ordinary way of doing the same, as ratios inside one run: `python -m benchmarks [NAME ...]`."""
