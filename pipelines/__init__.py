"""Ray Data streams: read seeds, synthesise, write, export."""
