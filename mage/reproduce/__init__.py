"""The paper's comparison as one command: tables of arms, the runs they need, and a page of results.

tables.py  which arms a table compares        scales.py         how large a run is
plan.py    arm x environment x seed = runs    runner.py         runs what is missing
worker.py  one run in its own process         results.py        figures and paired tests
page.py    conclusions, page, table, JSON     action_shares.py  moves by state and episode
paper.py   whether a run is the paper's       pictures.py       curves and circles as SVG
                                              reflections.py    one task quoted by trial
"""
