"""Sweeps: many runs of one recipe, and the front of those that no other beats. Trials are Optuna's.

space             what is searched: ranges and choices of keys of a recipe
plan              a sweep written down: base recipe, search, objectives, limits; its dense rivals
cost              microseconds of a step, from counts alone
storage  journal  where trials are kept: a file for one machine, PostgreSQL for many
places            which trial is next, and what becomes of those whose worker was killed
worker  sweep     one trial after the other; several workers
front  pick       the answers: which runs are best, and the model of one
"""
