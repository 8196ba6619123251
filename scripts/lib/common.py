"""What the Python scripts share: errors, options, files that appear whole.

The scripts keep the engine's manners (docs: exit codes): an error is one line
on standard error, `chunkflow: error: ...`, and nothing is half-written.
Standard library only, so that it also runs before any package is installed.
"""

import argparse
import contextlib
import difflib
import os
import shutil
import sys

EXIT_INTERNAL = 1
EXIT_USAGE = 2
EXIT_BAD_INPUT = 3


class Failure(Exception):
    """An error to tell the user in one line, with the exit code it deserves."""

    def __init__(self, message, code=EXIT_BAD_INPUT):
        super().__init__(message)
        self.code = code


class Options(argparse.ArgumentParser):
    """argparse that errs in one line and names the nearest option."""

    def __init__(self, **kwargs):
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message):
        prefix = "unrecognized arguments: "
        if message.startswith(prefix):
            unknown = message[len(prefix):].split()[0].split("=")[0]
            known = [name for action in self._actions
                     for name in action.option_strings]
            near = difflib.get_close_matches(unknown, known, 1)
            message = f"unknown argument {unknown}"
            if near:
                message += f"; did you mean {near[0]}?"
        raise Failure(f"{self.prog}: {message}", EXIT_USAGE)


def run(main):
    """Call main() and exit as the interface says."""
    try:
        main()
        sys.stdout.flush()
    except Failure as failure:
        line = " ".join(str(failure).split("\n"))
        print(f"chunkflow: error: {line}", file=sys.stderr)
        sys.exit(failure.code)
    except BrokenPipeError:
        os._exit(EXIT_INTERNAL)
    except KeyboardInterrupt:
        sys.exit(130)


@contextlib.contextmanager
def output_errors(path):
    """Turn an operating system error while writing into a Failure."""
    try:
        yield
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror or error}; "
                      "choose another place or free some space",
                      EXIT_USAGE) from error


@contextlib.contextmanager
def whole_folder(path):
    """A temporary folder beside `path` that takes its name only when all
    went well. `path` must not exist, or be an empty folder."""
    path = os.path.abspath(path)
    with output_errors(path):
        if os.path.isdir(path) and os.listdir(path):
            raise Failure(f"{path} is not empty; choose another folder",
                          EXIT_USAGE)
        if os.path.exists(path) and not os.path.isdir(path):
            raise Failure(f"{path} is not a folder", EXIT_USAGE)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.tmp-{os.getpid()}"
        os.mkdir(temporary)
    try:
        yield temporary
        with output_errors(path):
            if os.path.isdir(path):
                os.rmdir(path)
            os.rename(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_whole(path, text):
    """Write a text file that appears complete or not at all."""
    temporary = f"{path}.tmp-{os.getpid()}"
    with output_errors(path):
        try:
            with open(temporary, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            os.rename(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
