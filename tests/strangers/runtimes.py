"""Small programs in the runtimes of other languages, which have signal handlers, threads and collectors of their own."""

import pathlib
import shutil
import subprocess

from bed import HERE, TARGET, Case, Failure, of_program, need

LIMIT = 120
SOURCES = HERE / 'runtimes'


def cases():
    return [
        Case('Java: native methods in four threads', java),
        Case('Go: cgo in four goroutines', go),
    ]


def java(bed):
    need('javac')
    folder = made('java')
    # The folder of the JDK, in which `javac` is a link somewhere else.
    home = pathlib.Path(shutil.which('javac')).resolve().parent.parent
    include = home / 'include'
    build('cc', '-shared', '-fPIC', '-O2', '-Wall', '-Werror', f'-I{include}', f'-I{include}/linux',
          '-o', folder / 'libtransfers.so', SOURCES / 'transfers_jni.c', '-libverbs')
    build('javac', '-d', folder, SOURCES / 'Transfers.java')
    words = ['java', '-Xmx256m', f'-Djava.library.path={folder}', '-cp', folder, 'Transfers', 'weir_lo']
    return of_program(bed.run(words, 'Java', LIMIT), LIMIT, 1, 'all right')


def go(bed):
    need('go')
    program = made('go') / 'transfers'
    build('go', 'build', '-o', program, SOURCES / 'transfers.go')
    # Go ends by a system call, so that Weir does not log how many packets there were.
    return of_program(bed.run([program, 'weir_lo'], 'Go', LIMIT), LIMIT, 0, 'all right')


def made(name):
    folder = TARGET / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def build(*words):
    ended = subprocess.run(list(map(str, words)), cwd=SOURCES, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    if ended.returncode:
        raise Failure(f'{words[0]}: {ended.stdout}')
