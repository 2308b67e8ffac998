"""Proctor: governance for AI agents."""
