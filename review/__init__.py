"""A web app in which a small team labels, rewrites and reviews dialogues."""
