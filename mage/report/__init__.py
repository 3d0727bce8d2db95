"""Results of a run for people: curves, transcripts, verdict, problems and TensorBoard events.

run_results.py  the results of a run folder as records    values.py    figures as text
curves.py       the picture (drawing.py, training_curves.py)    verdict.py  conclusions
transcripts.py  a choice of meta-episodes as text    problems.py   what makes results doubtful
tensorboard.py  events for TensorBoard
"""
