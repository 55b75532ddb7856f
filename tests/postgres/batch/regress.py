"""`python -m tests.postgres.batch.regress`: PostgreSQL's own test suites with the module loaded.

`loaded`    nothing may differ.
`forced`    every function that is not volatile goes through the node. Rows may then come, and notices be
            raised, in another order, and a notice of equal calls once; nothing else may differ.

Needs a source tree of the same version that was configured and built (`make -C src/test/regress`), best with
--enable-cassert, and its installation. The suites run in a temporary instance of their own.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from ml_udf.cli.pg_server import PostgresServer
from tests.postgres.batch.building import build_module

__all__ = ["differing", "main"]

PROGRAMS = {"regress": "pg_regress", "isolation": "pg_isolation_regress"}
SCHEDULES = {"regress": "parallel_schedule", "isolation": "isolation_schedule"}
CRASHED = re.compile(r"TRAP:|PANIC:|terminated by signal")


def differing(diffs: str) -> dict[str, list[str]]:
    """By test, the changed lines of `regression.diffs` that are more than another order or a notice."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^diff ", diffs, flags=re.MULTILINE)[1:]:
        head, *lines = part.splitlines()
        changes: Counter[str] = Counter()
        for line in lines[2:]:  # without the two lines that name the files
            if line[:1] in ("+", "-") and "NOTICE:" not in line:
                changes[line[1:]] += 1 if line[0] == "+" else -1
        changed = [f"{'+' if count > 0 else '-'}{line}" for line, count in changes.items() if count]
        if changed:
            found[Path(head.split()[-1]).stem] = changed
    return found


def run(server: PostgresServer, suite: str, mode: str, build: Path, source: Path, settings: list[str]) -> int:
    program = build / "src/test" / suite / PROGRAMS[suite]
    if not program.exists():
        sys.exit(
            f"{program} does not exist: configure and build PostgreSQL {server.version} in {build} first"
        )
    user = pwd.getpwnam("postgres") if os.getuid() == 0 else pwd.getpwuid(os.getuid())
    with tempfile.TemporaryDirectory(prefix="ml_udf-regress-") as folder:
        work = Path(folder)
        module = Path(shutil.copy(build_module(server), work))
        forced = ["ml_udf.batch_everything = on", "ml_udf.gather_rows = 64"] if mode == "forced" else []
        config = [f"session_preload_libraries = '{module}'", "fsync = off", *forced, *settings]
        (work / "extra.conf").write_text("\n".join(config) + "\n")
        for path in (work, *work.iterdir()):
            os.chown(path, user.pw_uid, user.pw_gid)
        tests = source / "src/test" / suite
        command = [
            str(program),
            f"--temp-instance={work / 'instance'}",
            f"--inputdir={tests}",
            f"--outputdir={work}",
            f"--bindir={server.bin_dir}",
            f"--dlpath={build / 'src/test' / suite}",
            f"--temp-config={work / 'extra.conf'}",
            "--no-locale",
            "--encoding=UTF8",
            f"--schedule={tests / SCHEDULES[suite]}",
        ]
        command += ["--max-concurrent-tests=20"] if suite == "regress" else []
        done = subprocess.run(
            command, cwd=work, check=False, user=user.pw_uid, group=user.pw_gid, extra_groups=[]
        )
        return judge(work, mode, done.returncode)


def judge(work: Path, mode: str, status: int) -> int:
    log = (work / "log/postmaster.log").read_text(errors="replace")
    crashes = [line for line in log.splitlines() if CRASHED.search(line)]
    diffs = work / "regression.diffs"
    text = diffs.read_text(errors="replace") if diffs.exists() else ""
    found = differing(text)
    print("\n".join(crashes))  # noqa: T201  # a command that reports
    for test, lines in found.items():
        print(f"{test}:", *lines, sep="\n  ")  # noqa: T201
    if mode == "forced" and status and text and not found:
        print("Only the order of rows and notices differs.")  # noqa: T201
        status = 0
    return 1 if crashes or found else status


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=("loaded", "forced"))
    parser.add_argument("--suite", choices=tuple(PROGRAMS), default="regress")
    parser.add_argument("--build", type=Path, required=True, help="where PostgreSQL was built")
    parser.add_argument("--source", type=Path, help="its source, if that is elsewhere")
    parser.add_argument("--pg-config", type=Path, help="of its installation")
    parser.add_argument("--set", action="append", default=[], help="a line for postgresql.conf")
    options = parser.parse_args()
    server = PostgresServer.find(options.pg_config)
    return run(
        server, options.suite, options.mode, options.build, options.source or options.build, options.set
    )


if __name__ == "__main__":
    sys.exit(main())
