"""A compact model as C99: chains of layers in a few calls, any other program as one function; with golden vectors."""
