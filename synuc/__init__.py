"""SynUC's method: constraint-guided synthesis of user-side conflicts. Pure Python, no I/O."""
