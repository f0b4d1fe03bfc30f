"""Other ways to synthesise the same samples from the same dialogues, to compare with (paper, section 5.5)."""
