"""From a recipe to a compact model and its numbers.

assembly                              what an update needs: feeds, model, sparsifier, objective
feeds  objectives  step  schedule     one update: batches by number, the loss, the step, its learning rate
graph                                 captured on a GPU
pronouncing                           the loss and the errors of networks that pronounce words
evaluation                            quality and counts of the network as it would be used
parts  shrinking  trainer             what trains now, or after it; what is cut meanwhile; train(recipe): the loop
ending                                the compact model and result.json
checkpoints  resuming                 where it stands, on disk, and how it goes on from there
run_folder  lock                      what it leaves, and who may write there
ranks                                 several processes that make one run
options  progress  board              how it is carried out, and what it shows
"""
