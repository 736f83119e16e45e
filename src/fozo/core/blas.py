"""NumPy's BLAS on the calling thread.

OpenBLAS cuts a product of matrices of a few hundred rows among all processors. Its threads then spin for tens of
milliseconds, which is more than the product took, and a busy machine has no use for them.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from numpy.linalg import _umath_linalg

NAMES = ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads")
"""How NumPy's own OpenBLAS calls them, how that of NumPy 1 did, and a distribution's."""
_lock = threading.Lock()


@cache
def _thread_functions() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    """What reads and sets how many threads OpenBLAS uses; nothing where NumPy has another BLAS."""
    library = ctypes.CDLL(_umath_linalg.__file__)  # its names are looked up in the libraries that it needs, too
    for name in NAMES:
        if hasattr(library, name.format("set")):
            return library[name.format("get")], library[name.format("set")]
    return None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let NumPy's OpenBLAS compute on one thread meanwhile, in the whole process."""
    functions = _thread_functions()
    if functions is None:
        yield
        return
    get_threads, set_threads = functions
    with _lock:  # else the last to leave could restore the 1 of another
        before = get_threads()
        set_threads(1)
        try:
            yield
        finally:
            set_threads(before)
