"""What an auditor asks of the log."""
