"""Figures, beside peers in the same run. `make bench` runs them all; nothing here is a test."""
