"""The report of evaluations: one page with every figure, plot and published result that belongs beside them."""
