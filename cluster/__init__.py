"""The only place that starts or joins Ray, and how work is laid out on it. Knows none of the jobs."""
