"""The detector on Ray Serve, the guard in front of chat models, and the page to try both."""
