"""Train time: makes weights zero."""

from gatewise.sparsify.lasso import GroupLasso
from gatewise.sparsify.refit import Refit
from gatewise.sparsify.variational import Variational

__all__ = ["GroupLasso", "Refit", "Variational"]
