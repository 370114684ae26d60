"""A library below a process that makes trouble for its files and clock; needs a C compiler."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
enum {NONE, SHORT, FULL, ERROR, CLOCK};
static char folder[PATH_MAX];
static size_t length;
static int trouble;
static _Atomic long until_death, until_trouble, operations;
static _Atomic unsigned draw;

void begin(const char *of, int kind, long death, long moment, unsigned seed) {
    trouble = kind; until_death = death; until_trouble = moment; draw = seed | 1; operations = 0;
    strcpy(folder, of); length = strlen(of);
}
long counted(void) { return operations; }
static unsigned drawn(void) { unsigned x = draw; x ^= x << 13; x ^= x >> 17; x ^= x << 5; return draw = x; }
static int ours(const char *path) {
    return length && path && !strncmp(path, folder, length) && (!path[length] || path[length] == '/');
}
static int open_here(int file) {
    char link[64], path[PATH_MAX] = "";
    if (!length) return 0;
    strcpy(link, "/proc/self/fd/");
    char digits[16]; int n = 0, rest = file;
    do digits[n++] = '0' + rest % 10; while (rest /= 10);
    char *end = link + strlen(link);
    while (n) *end++ = digits[--n];
    *end = 0;
    return readlink(link, path, sizeof path - 1) > 0 && ours(path);
}
static void die(void) { if (!--until_death) kill(getpid(), SIGKILL); }
static int fails(int writes) {
    operations++;
    die();
    long left = --until_trouble;
    if (trouble == SHORT && drawn() % 8 == 0) return EINTR;
    if (trouble == FULL && writes && left <= 0) return ENOSPC;
    if (trouble == ERROR && left == 0) return EIO;
    return 0;
}
static size_t part(size_t bytes) {
    return trouble == SHORT && bytes > 1 && drawn() % 4 == 0 ? 1 + drawn() % bytes : bytes;
}
#define REAL(name) static typeof(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define CALL(here, writes, ...) \
    if (!(here)) return real(__VA_ARGS__); \
    int number = fails(writes); if (number) { errno = number; return -1; } \
    typeof(real(__VA_ARGS__)) got = real(__VA_ARGS__); number = errno; die(); errno = number; return got
ssize_t write(int f, const void *b, size_t n) {
    REAL(write); if (open_here(f)) n = part(n); CALL(open_here(f), 1, f, b, n);
}
ssize_t read(int f, void *b, size_t n) { REAL(read); if (open_here(f)) n = part(n); CALL(open_here(f), 0, f, b, n); }
ssize_t pread64(int f, void *b, size_t n, off64_t o) {
    REAL(pread64); if (open_here(f)) n = part(n); CALL(open_here(f), 0, f, b, n, o);
}
struct iovec { void *base; size_t bytes; };
ssize_t preadv64(int f, const struct iovec *v, int c, off64_t o);
ssize_t preadv64(int f, const struct iovec *v, int c, off64_t o) {
    REAL(preadv64);
    struct iovec first = {v->base, open_here(f) && c == 1 ? part(v->bytes) : v->bytes};
    CALL(open_here(f), 0, f, c == 1 ? &first : v, c, o);
}
int fsync(int f) { REAL(fsync); CALL(open_here(f), 1, f); }
int rename(const char *a, const char *b) { REAL(rename); CALL(ours(a) && trouble != SHORT, 1, a, b); }
int unlink(const char *a) { REAL(unlink); CALL(ours(a) && trouble != SHORT, 0, a); }
int mkdir(const char *a, mode_t m) { REAL(mkdir); CALL(ours(a) && trouble != SHORT, 1, a, m); }
int clock_gettime(clockid_t id, struct timespec *t) {
    REAL(clock_gettime);
    int got = real(id, t);
    if (id == CLOCK_REALTIME && trouble == CLOCK && until_trouble <= 0) t->tv_sec += draw & 2 ? 950400 : -950400;
    return got;
}
"""
TROUBLES = ("none", "short", "full", "error", "clock")
NEVER = 1 << 40


def begin(folder: Path, trouble: str, death: int, moment: int, seed: int) -> ctypes.CDLL:
    """Make trouble for files in a folder from the operation ``moment`` on, and die at the operation ``death``."""
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.begin.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_uint)
    library.begin(os.fsencode(folder), TROUBLES.index(trouble), death, moment, seed)
    return library


def preload() -> int:
    """Run this script below the library that makes trouble."""
    with tempfile.TemporaryDirectory() as name:
        source, library = Path(name, "trouble.c"), str(Path(name, "trouble.so"))
        source.write_text(LIBRARY, encoding="utf-8")
        words = ["cc", "-O1", "-shared", "-fPIC", "-D_FILE_OFFSET_BITS=64", "-o", library, str(source), "-ldl"]
        subprocess.run(words, check=True)
        environment = os.environ | {"LD_PRELOAD": library, "OMP_NUM_THREADS": "1"}
        return subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode
