"""Speed of MAGE relative to the usual way of doing the same: `python -m benchmarks [NAME ...]`."""
