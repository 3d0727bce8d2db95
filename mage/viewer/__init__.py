"""The viewer: a local page for runs, meta-episodes, credit and tables, and its static export.

library.py    finds runs and tables; answers a data path such as `run/ID/meta/NAME/3` with JSON
runs.py       rows of the run list, one run    transcripts.py  stored meta-episodes, prompts
credit.py     why a turn got its advantage     comparison.py   paired differences of two runs
server.py     the local server                 export.py       folders and single files
static/       the page: plain scripts, no build step; vendor/ holds Preact with htm and uPlot

The page reads the same data paths from the server and from an export, so both show the same views.
"""
