"""What a worker frees it has at hand again: no page is asked of the system twice."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from gt.worker import heap

#: Takes and frees memory as a training step would, in a thread; prints how many pages each of the later steps asked
#: for. Nothing is imported that has used much memory before: glibc would have learned from it.
SCRIPT = """
import ctypes, resource, runpy, sys, threading

path, nbytes, blocks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if path:
    runpy.run_path(path)["keep_freed_memory"]()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.memset.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def pages():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt

def work():
    for step in range(6):
        before = pages()
        made = [libc.memset(libc.malloc(nbytes), 1, nbytes) for _ in range(blocks)]
        for block in made:
            libc.free(block)
        if step > 1:
            print(pages() - before)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def pages_of_steps(path: str, nbytes: int, blocks: int) -> list[int]:
    args = [sys.executable, "-c", SCRIPT, path, str(nbytes), str(blocks)]
    done = subprocess.run(args, capture_output=True, text=True, timeout=120, check=True)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
@pytest.mark.parametrize(("nbytes", "blocks"), [(500_000, 8), (500_000, 200), (30_000_000, 4)])
def test_freed_memory_is_used_again(nbytes: int, blocks: int) -> None:
    pages = nbytes * blocks // 4096
    assert max(pages_of_steps(heap.__file__, nbytes, blocks)) < pages // 10
    assert min(pages_of_steps("", nbytes, blocks)) > pages // 4, (
        "glibc keeps it by itself: there is no need for heap.py"
    )
