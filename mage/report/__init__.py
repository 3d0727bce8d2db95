"""What people see of a run: curves, tables, transcripts."""
