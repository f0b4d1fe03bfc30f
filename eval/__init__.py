"""Evaluation of detectors: protocols, metrics, reports."""
