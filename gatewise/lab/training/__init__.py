"""From a recipe to a compact model and its numbers.

assembly                              what an update needs: feeds, model, sparsifier, objective
feeds  objectives  step               one update: batches by number, the loss, the step
graph                                 captured on a GPU
pronouncing                           the loss and the errors of networks that pronounce words
evaluation                            quality and counts of the network as it would be used
earlier                               the network of an earlier run, as a teacher or a start
dropped  average                      weights that are left out of an update, or averaged over many
parts  shrinking  trainer             what trains now, and how fast; what is cut meanwhile; train(recipe): the loop
ending                                the compact model and result.json
checkpoints  resuming                 where it stands, on disk, and how it goes on from there
run_folder                            what it leaves, and who may write there
ranks                                 several processes that make one run
options  progress                     how it is carried out, and what it shows
"""
