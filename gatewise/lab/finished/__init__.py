"""What is done with runs that are over.

opened     a run's folder, read
saved      evaluate_saved(): quality and counts of a saved model, from the data again
explore    figures and the explorer page
reproduce  the paper's tables beside our runs
"""
