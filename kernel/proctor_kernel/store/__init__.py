"""The event log and the read tables, on SQL."""
