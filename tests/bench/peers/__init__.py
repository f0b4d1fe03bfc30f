"""Our pipeline beside the ones that a user would pick, each of these in a virtual environment of its own."""
