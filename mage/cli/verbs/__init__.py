"""The commands, one file per group. Each file has `verbs`, which `cli/main.py` combines.

Results go to standard output, everything else to standard error. Files that import torch are
imported inside the command that needs them, so that `mage list` starts fast.
"""
