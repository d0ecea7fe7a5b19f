"""How the replay is compiled: kept on disk, division as NumPy does it, no door for Python.

What is called from one place is inlined before types are inferred: each further unit costs a
compilation of all that it reaches.
"""

import numba

_HOW = {
    "cache": True,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
compiled = numba.njit(**_HOW)
inlined = numba.njit(**_HOW, inline="always")
