"""How close synthesis at scale comes to its limits: one room for each measurement, each callable alone."""
