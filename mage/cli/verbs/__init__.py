"""The verbs, one file a group: arguments in, one call, figures out. Each file holds `verbs`, which `cli.py` puts together.

Results go to standard output, everything else to standard error. What loads torch is imported inside the verb that needs it,
so that `mage list` and a game against a scripted opponent start at once.
"""
