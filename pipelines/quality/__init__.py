"""What UC-Data is worth before anybody trains on it: balance, diversity, give-aways, difficulty, contamination."""
