"""ConflictProbe: does a model notice, and say, that a user contradicts an earlier fact?"""
