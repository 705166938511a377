"""Budget: how large a network may be, instead of how strong a penalty.

asked     one number of one kind, absolute or as a part of all
units     all gates and neurons of some layers in a row, and which of them stay
lasso     what Budget turns of a GroupLasso
bayes     the same of a Variational
steering  Budget itself
"""

from gatewise.budget.steering import Budget

__all__ = ["Budget"]
