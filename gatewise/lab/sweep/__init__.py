"""Sweeps: many runs of one recipe, and the front of those that no other beats. Trials are Optuna's.

space    what is searched: ranges and choices of keys of a recipe
plan     a sweep written down: base recipe, search, objectives, limits; its dense rivals
storage  Optuna's database, a file for one machine or PostgreSQL for many, and the studies in it
worker   one trial after the other; several workers
front    the answers: which runs are best, and the model of one
"""
