"""Results of a run for people: curves, transcripts, verdict, and copies for other tools.

run_results.py  the results of a run folder as records    values.py    figures as text
curves.py       the picture, with drawing.py         verdict.py   conclusions
transcripts.py  a choice of meta-episodes as text    loggers.py    values of run.loggers
"""
