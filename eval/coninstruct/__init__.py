"""ConInstruct (AAAI 2026, arXiv 2511.14342): do models notice that constraints of an instruction clash?"""
