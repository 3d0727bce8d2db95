"""The paper's comparison as one command: tables of arms, the runs they need, and one page of what came out.

tables.py   which arms a table compares      scales.py  how large a run is        plan.py  arm x world x seed = run folders
runner.py     runs what is missing             worker.py  one run in its own process
results.py  runs as figures and paired tests choices.py what is done where        draw.py  pictures
words.py    what the figures prove           page.py    the page, the table, the JSON
"""
