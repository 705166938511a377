"""A compact model as C99: a program as one function, with golden vectors."""
