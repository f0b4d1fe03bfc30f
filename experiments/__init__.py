"""The paper's experiments: cells of synthesis, training and evaluation, each step cached by what it is made from."""
