"""The laboratory: trains, sweeps, reproduces, draws, and talks on the command line. `pip install "gatewise[lab]"`.

recipe      a training run written down; recipes/: a file for each family of rows
models      the paper's five networks; initial: their starting values
data        corpora and your own files, as numbers
training    train(recipe): from a recipe to a compact model and its numbers
sweep       many runs of one recipe, and the front of those that no other beats
analyse     which gates live, how long neurons remember; a page to explore them
plot        pictures of any model
finished    runs that are over: judged again, drawn, set beside the paper's
files       files that are whole or absent; provenance: where a number comes from
demo        the tour
cli         the command line
"""

from importlib.util import find_spec

NEEDS = ("filelock", "matplotlib", "optuna", "pooch", "psycopg", "pydantic", "rich", "typer")

if missing := [name for name in NEEDS if find_spec(name) is None]:
    raise ImportError(
        f'gatewise.lab needs {", ".join(missing)}: pip install "gatewise[lab]"', name=missing[0]
    )
