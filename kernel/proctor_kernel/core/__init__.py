"""What happens to a run, as pure functions over frozen values. Read `decide.py` first."""
