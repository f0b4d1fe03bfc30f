"""Runs on a cluster of three nodes in which processes are killed at random moments."""
